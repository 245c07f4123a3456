"""Handwritten digits with a small convolutional network, written with Keras' functional API.

Records: TFRecord of tf.train.Example with `image` (one bytes value of 784 bytes, 28 × 28) and `label` (int64).
"""

import keras
import tensorflow as tf


def custom_model(filters=32, dropout=0.5):
    inputs = keras.Input((28, 28, 1), name="image")
    x = keras.layers.Conv2D(filters, 3, activation="relu")(inputs)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Conv2D(2 * filters, 3, activation="relu")(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(dropout)(x)
    outputs = keras.layers.Dense(10)(x)
    return keras.Model(inputs, outputs, name="mnist")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    features = {"image": tf.io.FixedLenFeature([], tf.string)}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(records):
        examples = tf.io.parse_example(records, features)
        pixels = tf.reshape(tf.io.decode_raw(examples["image"], tf.uint8), [-1, 28, 28, 1])
        images = tf.cast(pixels, tf.float32) / 255.0
        return images if mode == "prediction" else (images, examples["label"])

    return dataset.map(parse)


feed.whole_chunks = True


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
