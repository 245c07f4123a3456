"""xDeepFM on the flights of New York: does a flight arrive more than 15 minutes late?

A linear model, a compressed interaction network and a deep network over the same embeddings (Lian and others, "xDeepFM: Combining Explicit
and Implicit Feature Interactions for Recommender Systems", 2018).
"""

import keras
from keras import ops

from flights.columns import FIELDS, IDS, SCALES
from flights.columns import feed as feed  # a model file's symbol


def interact(vectors, maps):
    """Return the sums of the compressed interaction network's feature maps, so many in each layer (equation 6)."""
    first = ops.transpose(vectors, (0, 2, 1))  # by weight of the vectors: maps mix fields, never weights
    features, sums = first, []
    for count in maps:
        products = ops.expand_dims(features, 3) * ops.expand_dims(first, 2)
        products = ops.reshape(products, (-1, first.shape[1], features.shape[2] * first.shape[2]))
        features = keras.layers.Dense(count, use_bias=False)(products)
        sums.append(ops.sum(features, 1))
    return keras.layers.Concatenate()(sums)


def custom_model(width=16, maps=(16, 16), units=64):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    numbers = keras.Input((len(SCALES),), name="numbers")
    vectors = keras.layers.Embedding(IDS, width, name="vectors")(ids)
    weights = keras.layers.Embedding(IDS, 1, embeddings_initializer="zeros", name="weights")(ids)
    linear = keras.layers.Flatten()(weights)
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    deep = keras.layers.Dense(units, activation="relu")(deep)
    deep = keras.layers.Dense(units // 2, activation="relu")(deep)
    together = keras.layers.Concatenate()([linear, interact(vectors, maps), deep])
    return keras.Model(
        {"ids": ids, "numbers": numbers},
        keras.layers.Dense(1, activation="sigmoid")(together),
        name="xdeepfm",
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=0.02):
    return keras.optimizers.Adagrad(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
