"""The symbols of a model file that is made of a plan: what `elasticdl train`, `evaluate`, `predict` and `export` want of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from elasticdl.spec.jobspec import Mode
from elasticdl.tabular.features import PROBABILITIES, Label, LabelKind, Plan
from elasticdl.tabular.inputs import NONE, UNKNOWN, columns_of, preprocessing, raw_inputs
from elasticdl.tabular.models import trained_part

_PATIENCE = 5
"""Epochs without a better loss, or a tenth of all if these are more."""


class TableModel:
    """A plan with its layers, which are made once: `feed` applies those that `serving_model` writes."""

    def __init__(self, path: Path) -> None:
        """`path`: of the plan's JSON."""
        self.plan = Plan.from_json(path.read_text())
        self._preprocessing = preprocessing(self.plan)
        self._classes = _classes(self.plan.label)

    def custom_model(self) -> Any:
        """Return the trained part, with its first weights."""
        return trained_part(self.plan)

    def feed(self, dataset: Any, mode: str, metadata: Any) -> Any:
        """Return (features, labels) of whole chunks of a table's columns; only features for predictions."""

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def parse(records: Any) -> Any:
            features = self._preprocessing(columns_of(self.plan, records))
            if mode == Mode.PREDICTION:
                return features
            values = records[self.plan.label.column]
            if not self.plan.label.classes:
                return features, tf.cast(values, tf.float32)
            classes = self._number(values)
            if mode == Mode.TRAINING:
                return features, classes
            # a class that training never saw is left out of metrics
            return features, tf.maximum(classes, 0), tf.cast(classes >= 0, tf.float32)

        return dataset.map(parse)

    feed.whole_chunks = True  # type: ignore[attr-defined]

    def _number(self, values: Any) -> Any:
        """Return numbers of classes; -1 of a value that is none."""
        if self.plan.label.kind is LabelKind.TEXT:
            return self._classes(values) - 1
        whole = tf.cast(values, tf.int64)
        classes = self._classes(whole) - 1
        if not values.dtype.is_floating:
            return classes
        return tf.where(tf.cast(whole, values.dtype) == values, classes, tf.constant(-1, classes.dtype))

    def loss(self, labels: Any, predictions: Any) -> Any:
        """Return the cross-entropy, or the squared error in deviations of the label, of each example."""
        label = self.plan.label
        if label.classes:
            return keras.losses.sparse_categorical_crossentropy(labels, predictions[PROBABILITIES])
        return ops.square((labels - predictions[label.column]) / label.deviation)

    def optimizer(self) -> Any:
        """Return the plan's optimizer."""
        network = self.plan.network
        config = {"class_name": network.optimizer, "config": dict(network.optimizer_arguments)}
        return keras.optimizers.get(config)

    def eval_metrics_fn(self) -> dict[str, Any]:
        """Return what is measured besides the loss."""
        label = self.plan.label
        usual = ("accuracy", "auc") if len(label.classes) == 2 else ("accuracy",)
        usual = usual if label.classes else ("mean_absolute_error", "root_mean_squared_error")
        return {name: metric(name, label) for name in self.plan.network.metrics or usual}

    def callbacks(self) -> list[Any]:
        """Return early stopping where there are rows to see it on; servers of parameters take none."""
        if not self.plan.stops_early:
            return []
        patience = max(_PATIENCE, self.plan.settings["num_epochs"] // 10)
        return [keras.callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True)]

    def serving_model(self, model: Any) -> Any:
        """Return what is written: columns in, the outputs of `model` out."""
        raw = raw_inputs(self.plan)
        return keras.Model(raw, model(self._preprocessing(raw)), name="table_model")


def _classes(label: Label) -> Any:
    """Return the layer that gives values of a label the numbers of their classes, from 1; None if it has none."""
    if not label.classes:
        return None
    if label.kind is LabelKind.TEXT:
        return keras.layers.StringLookup(vocabulary=[str(one) for one in label.classes], oov_token=UNKNOWN)
    return keras.layers.IntegerLookup(vocabulary=[int(one) for one in label.classes], oov_token=NONE)


# ------------------------------------------------------------------ metrics


def metric(name: str, label: Label) -> Any:
    """Return a metric of an output, by its name."""
    match name:
        case "accuracy":
            return _of(keras.metrics.SparseCategoricalAccuracy, PROBABILITIES)
        case "auc":
            return _of(keras.metrics.AUC, PROBABILITIES)
        case "precision":
            return _of(keras.metrics.Precision, PROBABILITIES)
        case "recall":
            return _of(keras.metrics.Recall, PROBABILITIES)
    kinds = {
        "mean_absolute_error": keras.metrics.MeanAbsoluteError,
        "mean_squared_error": keras.metrics.MeanSquaredError,
        "root_mean_squared_error": keras.metrics.RootMeanSquaredError,
    }
    return _of(kinds[name], label.column)


def _of(kind: type, output: str) -> Any:
    """Return a metric of one output; those of two classes get the probability of the second."""
    positive = kind in (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall)

    class OfOutput(kind):  # type: ignore[misc]
        """The metric, given all outputs."""

        def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> Any:
            """Add a batch."""
            # of one output a job gives the values themselves
            values = predictions[output] if isinstance(predictions, Mapping) else predictions
            if positive:
                values = values[:, 1]
            elif len(values.shape) == 1:
                # Of vectors Keras takes one mean for each batch, and a last one of few rows would count as much as a full one.
                labels, values = ops.expand_dims(labels, -1), ops.expand_dims(values, -1)
            return super().update_state(labels, values, sample_weight)

    return OfOutput()
