import numpy as np
import optax
from flax import nnx

from elasticdl.jax import Callback

WRITTEN = []


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, rows):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(rows)))))


def custom_model(rngs):
    return Net(rngs)


def loss(labels, outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


def optimizer():
    return optax.adam(0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :4], rows[:, 4].astype(np.int32)


class Written(Callback):
    def on_train_end(self, step, writes):
        WRITTEN.append((step, writes))


def eval_metrics_fn():
    def accuracy(labels, outputs):
        return labels == outputs.argmax(1)

    return {"accuracy": accuracy, "right": lambda labels, outputs: accuracy(labels, outputs).mean()}


def callbacks():
    return [Written()]
