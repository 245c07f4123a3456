import numpy as np
import plainsums  # noqa: F401  # says which framework this is of


def custom_model():
    def squares(value, features, labels):
        difference = features @ value - labels
        return (difference * difference).sum(), 2 * difference @ features

    return [0.0, 0.0, 0.0, 0.0], squares


def optimizer():
    return 0.005


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float64)
    return rows[:, :4], rows[:, 4]
