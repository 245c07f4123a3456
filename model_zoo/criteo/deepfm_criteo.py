"""DeepFM on Criteo's click logs: is an advertisement clicked?

The model of `deepfm/deepfm_flights.py` over tables of any size: a category has a row from when it is first trained, so there is no
vocabulary to build and no number of ids to guess. Such tables need parameter servers, and are exported as Parquet only
(`--output_format=parquet`); with `--model_params "ids=1000000"` categories share so many rows, and a Keras model can hold them. Files
that are not named .tsv need `--data_reader_params "delimiter='\\t'"`.
"""

import keras
from keras import ops

from criteo.columns import FIELDS, NUMBERS
from criteo.columns import feed as feed  # a model file's symbol
from elasticdl.keras import Embedding


def custom_model(ids=None, width=16, units=256):
    names = keras.Input((FIELDS,), dtype="int64", name="ids")
    numbers = keras.Input((NUMBERS,), name="numbers")
    places = names if ids is None else names % ids
    vectors = Embedding(width, input_dim=ids, name="vectors")(places)
    linear = Embedding(1, input_dim=ids, embeddings_initializer="zeros", combiner="sum", name="weights")(
        places
    )
    # Half of (the square of the sum, less the sum of the squares) is the sum over all pairs.
    pairs = 0.5 * (ops.square(ops.sum(vectors, 1)) - ops.sum(ops.square(vectors), 1))
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    for share in (1, 2, 4):
        deep = keras.layers.Dense(units // share, activation="relu")(deep)
    together = keras.layers.Concatenate()([linear, numbers, pairs, deep])
    return keras.Model(
        {"ids": names, "numbers": numbers},
        keras.layers.Dense(1, activation="sigmoid")(together),
        name="deepfm",
    )


def loss(labels, predictions):
    return ops.mean(keras.losses.binary_crossentropy(ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=0.02):
    return keras.optimizers.Adagrad(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
