"""A table of which each record touches rows of its own: trained once, all of it is there."""

from __future__ import annotations

import keras
import tensorflow as tf

PER_RECORD, WIDTH = 64, 256


def custom_model(records):
    ids = keras.Input((PER_RECORD,), dtype="int64")
    rows = keras.layers.Embedding(records * PER_RECORD, WIDTH, name="large")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(rows)))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(dataset, mode, metadata):
    def parse(row):
        number = tf.strings.to_number(row[0], tf.int64)
        return number * PER_RECORD + tf.range(PER_RECORD, dtype=tf.int64), tf.ones([1])

    return dataset.map(parse)
