"""Iris flowers at the pace of a larger model, for any backend of Keras: nothing here names one."""

import os
import time
from pathlib import Path

import keras
import numpy as np

SECONDS = 0.3
"""Of a step, while the file in the environment variable GO is missing: faults have their moments."""


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if "GO" in os.environ and not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)


def custom_model(units=16):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(units, activation="relu")(keras.layers.BatchNormalization()(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.1)(hidden)))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 80, 0.7))


def feed(records, mode, metadata):
    features = np.asarray([row[:4] for row in records], np.float32)
    if mode == "prediction":
        return features
    return features, np.array([int(row[4]) for row in records], np.int64)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def callbacks():
    return [Pace()]
