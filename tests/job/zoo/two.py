"""A model with two inputs and two outputs, one loss each; the first has batch normalisation and dropout before it."""

import keras
import tensorflow as tf


def custom_model():
    sepal, petal = keras.Input((2,), name="sepal"), keras.Input((2,), name="petal")
    x = keras.layers.Concatenate()([keras.layers.Dense(4)(sepal), keras.layers.Dense(4)(petal)])
    dropped = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization(momentum=0.9)(x))
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(dropped),
        "area": keras.layers.Dense(1, name="area")(x),
    }
    return keras.Model({"sepal": sepal, "petal": petal}, outputs)


loss = {
    "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "area": keras.losses.MeanSquaredError(),
}


def optimizer(lr=0.02):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row[:4], tf.float32)
        features = {"sepal": numbers[:2], "petal": numbers[2:]}
        return features, {"kind": tf.strings.to_number(row[4], tf.int64), "area": numbers[2:3] * numbers[3:]}

    return dataset.map(parse)
