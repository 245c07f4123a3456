"""Handwritten digits with a small convolutional network in JAX.

Records: columns `image` (784 bytes, 28 × 28) and `label`, as `make_data.py --parquet` writes them.
"""

import numpy as np
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, filters, dropout, rngs):
        self.first = nnx.Conv(1, filters, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(filters, 2 * filters, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(2 * filters, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.last = nnx.Linear(2 * filters * 49, 10, rngs=rngs)

    def __call__(self, images):
        found = nnx.relu(self.norm(self.second(nnx.relu(self.first(images)))))
        return self.last(self.dropout(found.reshape(len(images), -1)))


def custom_model(rngs, filters=16, dropout=0.5):
    return Net(filters, dropout, rngs)


def loss(labels, outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def optimizer():
    return optax.adamw(optax.exponential_decay(2e-3, transition_steps=50, decay_rate=0.9))


def feed(records, mode, metadata):
    pixels = np.frombuffer(b"".join(records["image"]), np.uint8).reshape(-1, 28, 28, 1)
    images = pixels.astype(np.float32) / 255
    return images if mode == "prediction" else (images, records["label"].astype(np.int32))


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: labels == outputs.argmax(1)}
