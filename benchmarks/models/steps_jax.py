"""A network of 5.3 million parameters in JAX: a model file, and as `steps_jax.py DATA EPOCHS` the plain `nnx.jit` loop."""

import sys

import numpy as np

if __name__ == "__main__":
    from elasticdl.spec import framework

    framework.find("jax").start(1)

import optax
import pyarrow.parquet
from flax import nnx

from benchmarks.moments import Measuring, Moments

BATCH = 64


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(784, 1900, rngs=rngs)
        self.second = nnx.Linear(1900, 2000, rngs=rngs)
        self.last = nnx.Linear(2000, 10, rngs=rngs)

    def __call__(self, rows):
        return self.last(nnx.relu(self.second(nnx.relu(self.first(rows)))))


def custom_model(rngs):
    return Net(rngs)


def loss(labels, outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def optimizer():
    return optax.sgd(0.01, momentum=0.9)


def feed(records, mode, metadata):
    return records["row"], records["label"]


def callbacks():
    return [Measuring()]


def main(data, epochs):
    table = pyarrow.parquet.read_table(data)
    rows = np.stack(table["row"].to_numpy())
    labels = table["label"].to_numpy()
    model = Net(nnx.Rngs(1))
    trained = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model, trained, rows, labels):
        value, gradient = nnx.value_and_grad(lambda model: loss(labels, model(rows)))(model)
        trained.update(model, gradient)
        return value

    moments = Moments()
    for _ in range(epochs):
        for first in range(0, len(rows), BATCH):
            step(
                model, trained, rows[first : first + BATCH], labels[first : first + BATCH]
            ).block_until_ready()
            moments.end_step()
    moments.write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
