"""A plan's model, trained in this process as a job of one worker trains it: the same functions, minibatches and early stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from elasticdl.tabular import template
from elasticdl.tabular.features import Plan
from elasticdl.tabular.modelfile import TableModel


def columns_of(table: pa.Table) -> dict[str, Any]:
    """Return a table as a chunk of columns: null texts are empty, lists are ragged."""
    found = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_list(field.type):
            found[field.name] = tf.ragged.constant(
                column.to_pylist(),
                dtype=tf.string if pa.types.is_string(field.type.value_type) else tf.float64,
            )
        elif pa.types.is_string(field.type):
            found[field.name] = tf.constant(column.fill_null("").to_pylist())
        else:
            found[field.name] = tf.constant(column.to_numpy())
    return found


def loaded(folder: Path, plan: Plan) -> TableModel:
    """Return the symbols of the model file of a plan."""
    template.write(folder, plan)
    return TableModel(folder / template.PLAN)


def fed(model: TableModel, table: pa.Table, mode: str = "training") -> Any:
    """Return what `feed` makes of a table as one chunk."""
    return model.feed(tf.data.Dataset.from_tensors(columns_of(table)), mode, None).get_single_element()


def trained(model: TableModel, training: pa.Table, validation: pa.Table | None, seed: int = 0) -> Any:
    """Return the trained part after all epochs, or with the weights that were best."""
    tf.keras.utils.set_random_seed(seed)
    part, optimizer = model.custom_model(), model.optimizer()
    optimizer.build(part.trainable_variables)
    features, labels = fed(model, training)
    settings = model.plan.settings
    batches = (
        tf.data.Dataset.from_tensor_slices((features, labels))
        .shuffle(training.num_rows, seed)
        .batch(settings["minibatch_size"])
    )

    @tf.function
    def epoch() -> None:
        for chunk, given in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(given, part(chunk, training=True)))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, part.trainable_variables), part.trainable_variables, strict=True)
            )

    best, since, weights = np.inf, 0, part.get_weights()
    patience = model.callbacks()[0].patience if model.callbacks() and validation is not None else None
    held_out = None if validation is None else fed(model, validation)
    for _ in range(settings["num_epochs"]):
        epoch()
        if patience is None or held_out is None:
            continue
        loss = float(np.mean(model.loss(held_out[1], part(held_out[0], training=False))))
        best, since, weights = (loss, 0, part.get_weights()) if loss < best else (best, since + 1, weights)
        if since >= patience:
            break
    if patience is not None:
        part.set_weights(weights)
    return part
