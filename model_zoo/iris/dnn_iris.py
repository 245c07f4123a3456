"""Iris flowers with two dense layers: CSV with the columns sepal_length, sepal_width, petal_length, petal_width, class (0, 1 or 2)."""

import keras
import tensorflow as tf


def custom_model(units=16):
    inputs = keras.Input((4,), name="measures")
    x = keras.layers.Dense(units, activation="relu")(inputs)
    x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(3)(x), name="iris")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=0.05):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(rows):
        measures = tf.strings.to_number(rows[:, :4], tf.float32)
        return measures if mode == "prediction" else (measures, tf.strings.to_number(rows[:, 4], tf.int64))

    return dataset.map(parse)


feed.whole_chunks = True


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
