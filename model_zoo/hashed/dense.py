"""A small dense network over embedded categories and scaled numbers, for tables of some hundred or thousand rows."""

import keras
from keras import ops


def dense(fields, numbers, ids, width, units, dropout):
    """Return a model of {"ids": [n, fields] below `ids`, "numbers": [n, numbers]} with one output, a probability."""
    names = keras.Input((fields,), dtype="int64", name="ids")
    measures = keras.Input((numbers,), name="numbers")
    vectors = keras.layers.Flatten()(keras.layers.Embedding(ids, width, name="vectors")(names))
    deep = keras.layers.Concatenate()([vectors, measures])
    deep = keras.layers.Dense(units, activation="relu")(deep)
    deep = keras.layers.Dropout(dropout)(deep)
    return keras.Model(
        {"ids": names, "numbers": measures}, keras.layers.Dense(1, activation="sigmoid")(deep), name="dense"
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=1000), "accuracy": keras.metrics.BinaryAccuracy()}
