"""Which texture an image shows: a small convolutional network over a directory for each class.

Records: `image`, the bytes of an image of 64 × 64 pixels, and `label`, the number of its class.
"""

import keras
import tensorflow as tf

SIDE = 64


def custom_model(filters=16, classes=3):
    inputs = keras.Input((SIDE, SIDE, 1), name="image")
    x = inputs
    for factor in (1, 2, 4):
        x = keras.layers.Conv2D(factor * filters, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="textures")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=3e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        image = tf.io.decode_image(record["image"], channels=1, expand_animations=False)
        pixels = tf.cast(tf.ensure_shape(image, [SIDE, SIDE, 1]), tf.float32) / 255.0
        return pixels if mode == "prediction" else (pixels, record["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
