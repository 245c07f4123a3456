"""Iris flowers at the pace of a larger model, with everything that a model file for JAX may have."""

import os
import time
from pathlib import Path

import numpy as np
import optax
from flax import nnx

from elasticdl.jax import Callback

SECONDS = 0.3
"""Of a step, while the file in the environment variable GO is missing: faults have their moments."""


class Pace(Callback):
    def on_step_end(self, logs):
        if "GO" in os.environ and not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)

    def on_train_end(self, step, writes):
        # what is done at the end takes as long as with a larger model: faults have their moments in the final view
        while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
            time.sleep(0.05)


class Net(nnx.Module):
    def __init__(self, units, rngs):
        self.first = nnx.Linear(4, units, rngs=rngs)
        self.norm = nnx.BatchNorm(units, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(units, 3, rngs=rngs)

    def __call__(self, rows):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(rows)))))


def custom_model(rngs, units=16):
    return Net(units, rngs)


def loss(labels, outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels)


def optimizer():
    return optax.adamw(optax.exponential_decay(0.02, transition_steps=80, decay_rate=0.7))


def feed(records, mode, metadata):
    features = np.asarray([row[:4] for row in records], np.float32)
    if mode == "prediction":
        return features
    return features, np.array([int(row[4]) for row in records], np.int32)


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: labels == outputs.argmax(1)}


def callbacks():
    return [Pace()]
