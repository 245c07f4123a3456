"""DCN-v2 on the flights of New York: does a flight arrive more than 15 minutes late?

A cross network beside a deep one over the same embeddings (Wang and others, "DCN V2: Improved Deep & Cross Network and Practical Lessons
for Web-scale Learning to Rank Systems", 2021), in the parallel structure of its figure 1b.
"""

import keras
from keras import ops

from flights.columns import FIELDS, IDS, SCALES
from flights.columns import feed as feed  # a model file's symbol


def cross(first, layers):
    """Multiply by the first features once more in each layer: x' = x0 * (W x + b) + x."""
    features = first
    for _ in range(layers):
        features = first * keras.layers.Dense(first.shape[-1])(features) + features
    return features


def custom_model(width=16, layers=3, units=64):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    numbers = keras.Input((len(SCALES),), name="numbers")
    vectors = keras.layers.Embedding(IDS, width, name="vectors")(ids)
    first = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    deep = keras.layers.Dense(units, activation="relu")(first)
    deep = keras.layers.Dense(units // 2, activation="relu")(deep)
    together = keras.layers.Concatenate()([cross(first, layers), deep])
    return keras.Model(
        {"ids": ids, "numbers": numbers}, keras.layers.Dense(1, activation="sigmoid")(together), name="dcn"
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=0.02):
    return keras.optimizers.Adagrad(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
