"""A plan's model, trained in this process as a job of one worker trains it: the same functions, minibatches, epochs and early stopping.

An epoch is one call of a compiled function, which is kept for tables of which the same model is made. To be the same for labels with other
means, it is of a model of the standardised label: the loss is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from elasticdl.tabular.features import PROBABILITIES, Plan
from elasticdl.tabular.modelfile import TableModel
from tests.tabular.feeding import fed, loaded


@dataclass(frozen=True, slots=True)
class Examples:
    """What `feed` made of rows: features and labels, with the examples along the first dimension."""

    features: Any
    labels: Any

    def part(self, begin: int, end: int) -> Examples:
        """Return some of the rows."""
        return Examples({name: one[begin:end] for name, one in self.features.items()}, self.labels[begin:end])


class Table:
    """A plan as a model of the standardised label."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        folder.mkdir()
        self.label = plan.label
        if not plan.label.classes:
            plan = replace(plan, label=replace(plan.label, mean=0.0, deviation=1.0))
        self.model: TableModel = loaded(folder, plan)

    @property
    def layers(self) -> Any:
        """Return what decides which layers the model has."""
        plan = self.model.plan
        return plan.label, len(plan.numbers), tuple((one.size, one.width) for one in plan.ids)

    def examples(self, table: pa.Table) -> Examples:
        """Return rows as features and labels."""
        features, labels = fed(self.model, table)
        if not self.label.classes:
            labels = (labels - self.label.mean) / self.label.deviation
        return Examples(features, labels)


class Training:
    """The compiled functions of the models of some tables, which have the same layers."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self._part = model.custom_model()
        self._wanted = PROBABILITIES if model.plan.label.classes else model.plan.label.column
        # without the values of classes, which are looked up in tables that XLA does not know
        self._head = keras.Model(self._part.input, {self._wanted: self._part.output[self._wanted]})
        self._optimizer = model.optimizer()
        self._optimizer.build(self._part.trainable_variables)
        self._start = [variable.numpy() for variable in self._optimizer.variables]
        self._epoch = tf.function(self._of_epoch, jit_compile=True)
        self._loss = tf.function(self._of_loss)

    def train(self, table: Table, training: Examples, validation: Examples | None, seed: int) -> None:
        """Train first weights, for all epochs or until the loss of the validation gets no better; keep those that were best."""
        keras.utils.set_random_seed(seed)
        self._part.set_weights(table.model.custom_model().get_weights())
        for variable, value in zip(self._optimizer.variables, self._start, strict=True):
            variable.assign(value)
        draw = np.random.default_rng(seed)
        stops = [one for one in table.model.callbacks() if isinstance(one, keras.callbacks.EarlyStopping)]
        assert len(stops) == (validation is not None)
        best, since, weights = np.inf, 0, self._part.get_weights()
        for _ in range(table.model.plan.settings["num_epochs"]):
            order = draw.permutation(len(training.labels))
            self._epoch(tf.constant(order), training.features, training.labels)
            if validation is None:
                continue
            loss = float(self._loss(validation.features, validation.labels))
            since = 0 if loss < best else since + 1
            if loss < best:
                best, weights = loss, self._part.get_weights()
            if since >= stops[0].patience:
                break
        if validation is not None:
            self._part.set_weights(weights)

    def predicted(self, table: Table, features: Any) -> Any:
        """Return the label's values."""
        found = self._part(features, training=False)[self._model.plan.label.column].numpy()
        return found if table.label.classes else found * table.label.deviation + table.label.mean

    def _of_loss(self, features: Any, labels: Any) -> Any:
        return tf.reduce_mean(self._model.loss(labels, self._head(features, training=False)))

    def _of_epoch(self, order: Any, features: Any, labels: Any) -> None:
        """Take a step for each minibatch; those rows that the last one lacks are others without a weight."""
        size = self._model.plan.settings["minibatch_size"]
        steps = -(-order.shape[0] // size)
        order = tf.reshape(tf.pad(order, [[0, steps * size - order.shape[0]]]), [steps, size])
        weights = self._part.trainable_variables
        for step in tf.range(steps):
            place = order[step]
            counts = tf.cast(step * size + tf.range(size) < labels.shape[0], tf.float32)
            with tf.GradientTape() as tape:
                batch = {name: tf.gather(one, place) for name, one in features.items()}
                losses = self._model.loss(tf.gather(labels, place), self._head(batch, training=True))
                loss = tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)
            self._optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
