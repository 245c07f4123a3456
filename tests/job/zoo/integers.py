"""A linear model on integers: sums of its gradients are exact in float32, whatever the order of summation."""

import numpy as np
from pace import Pace

from elasticdl.reference import SGD, Computed, Model


class Integers(Model):
    """The gradient, the sum of features times labels, does not depend on the weights."""

    def parameters(self, random):
        return {"weights": np.zeros(3, np.float32)}

    def compute(self, values, rows, features, labels, random):
        return Computed(
            float((labels * (features @ values["weights"])).sum()), {"weights": labels @ features}
        )


def custom_model():
    return Integers()


def optimizer(lr=0.5):
    return SGD(lr)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :3], rows[:, 3]


def callbacks():
    return [Pace()]
