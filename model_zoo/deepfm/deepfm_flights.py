"""DeepFM on the flights of New York: does a flight arrive more than 15 minutes late?

A factorisation machine and a deep network over the same embeddings (Guo and others, "DeepFM: a factorization-machine based neural network
for CTR prediction", 2017).
"""

import keras
from keras import ops

from flights.columns import FIELDS, IDS, SCALES
from flights.columns import feed as feed  # a model file's symbol


def custom_model(width=16, units=64):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    numbers = keras.Input((len(SCALES),), name="numbers")
    vectors = keras.layers.Embedding(IDS, width, name="vectors")(ids)
    weights = keras.layers.Embedding(IDS, 1, embeddings_initializer="zeros", name="weights")(ids)
    linear = keras.layers.Flatten()(weights)
    # Half of (the square of the sum, less the sum of the squares) is the sum over all pairs.
    pairs = 0.5 * (ops.square(ops.sum(vectors, 1)) - ops.sum(ops.square(vectors), 1))
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    deep = keras.layers.Dense(units, activation="relu")(deep)
    deep = keras.layers.Dense(units // 2, activation="relu")(deep)
    together = keras.layers.Concatenate()([linear, pairs, deep])
    return keras.Model(
        {"ids": ids, "numbers": numbers}, keras.layers.Dense(1, activation="sigmoid")(together), name="deepfm"
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=0.02):
    return keras.optimizers.Adagrad(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
