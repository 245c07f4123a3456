"""What an image shows, with Keras' ResNet50 from random weights, over a directory for each class, as ImageNet has.

Records: `image`, the bytes of an image of any size, and `label`, the number of its class. An image is scaled so that it covers a square of
224 × 224 pixels, and cut to it at the middle; `side` is the size that the network computes with.
"""

import keras
import tensorflow as tf

from cifar10.cifar10_functional_api import eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

SIDE = 224


def custom_model(classes=1000, side=SIDE):
    inputs = keras.Input((SIDE, SIDE, 3), name="image")
    x = keras.layers.RandomFlip("horizontal")(inputs)
    if side != SIDE:
        x = keras.layers.Resizing(side, side)(x)
    body = keras.applications.ResNet50(
        weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None
    )
    return keras.Model(inputs, body(x), name="resnet50_folders")


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        image = tf.io.decode_image(record["image"], channels=3, expand_animations=False)
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        size = tf.cast(tf.math.ceil(size * (SIDE / tf.reduce_min(size))), tf.int32)
        pixels = tf.image.resize_with_crop_or_pad(tf.image.resize(image, size), SIDE, SIDE) / 255.0
        return pixels if mode == "prediction" else (pixels, record["label"])

    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
