"""Wide & deep on the KDD census: does a person earn more than 50,000 dollars?

A linear model of all columns and of crossed ones beside a dense network over embeddings (Cheng and others, "Wide & Deep Learning for
Recommender Systems", 2016). Unlike there, both have the same optimizer.
"""

import keras
from keras import ops

from census.columns import FIELDS, IDS
from census.dnn_census import eval_metrics_fn, feed, loss, optimizer
from census.fields import CATEGORIES
from wide_deep.crosses import cross

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

CROSSES = (
    ("education", "detailed_occupation"),
    ("age", "education", "sex"),
    ("class_of_worker", "detailed_industry"),
    ("marital_status", "sex", "weeks_worked"),
)
CROSSED = 1 << 16
"""Ids of all crosses together."""


def custom_model(width=8, units=128):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    places = [[CATEGORIES.index(name) for name in names] for names in CROSSES]
    single = keras.layers.Embedding(IDS, 1, embeddings_initializer="zeros", name="single")(ids)
    pairs = keras.layers.Embedding(CROSSED, 1, embeddings_initializer="zeros", name="crossed")(
        cross(ids, places, CROSSED)
    )
    wide = ops.sum(single, 1) + ops.sum(pairs, 1)
    deep = keras.layers.Flatten()(keras.layers.Embedding(IDS, width, name="vectors")(ids))
    deep = keras.layers.Dense(units, activation="relu")(deep)
    deep = keras.layers.Dense(units // 2, activation="relu")(deep)
    together = wide + keras.layers.Dense(1)(deep)
    return keras.Model(ids, keras.layers.Activation("sigmoid")(together), name="wide_deep")
