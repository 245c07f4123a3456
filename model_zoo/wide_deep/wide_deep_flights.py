"""Wide & deep on the flights of New York: does a flight arrive more than 15 minutes late?

A linear model of names and of crossed names beside a deep network over embeddings, trained together (Cheng and others, "Wide & Deep
Learning for Recommender Systems", 2016). Unlike there, both have the same optimizer.
"""

import keras
from keras import ops

from flights.columns import FIELDS, IDS, SCALES
from flights.columns import feed as feed  # a model file's symbol
from wide_deep.crosses import cross

CARRIER, AIRCRAFT, ORIGIN, DESTINATION, HOUR, MONTH = 0, 1, 3, 4, 5, 6
CROSSES = ((CARRIER, DESTINATION), (ORIGIN, DESTINATION, HOUR), (ORIGIN, HOUR, MONTH), (AIRCRAFT, HOUR))
CROSSED = 1 << 20
"""Ids of all crosses together."""


def custom_model(width=16, units=64):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    numbers = keras.Input((len(SCALES),), name="numbers")
    single = keras.layers.Embedding(IDS, 1, embeddings_initializer="zeros", name="single")(ids)
    crossed = keras.layers.Embedding(CROSSED, 1, embeddings_initializer="zeros", name="crossed")(
        cross(ids, CROSSES, CROSSED)
    )
    wide = ops.sum(single, 1) + ops.sum(crossed, 1)
    vectors = keras.layers.Embedding(IDS, width, name="vectors")(ids)
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    deep = keras.layers.Dense(units, activation="relu")(deep)
    deep = keras.layers.Dense(units // 2, activation="relu")(deep)
    together = wide + keras.layers.Dense(1)(deep)
    return keras.Model(
        {"ids": ids, "numbers": numbers}, keras.layers.Activation("sigmoid")(together), name="wide_deep"
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=0.02):
    return keras.optimizers.Adagrad(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
