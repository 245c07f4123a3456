"""Where coins are: a detector's head on a small network, over a directory of images with a COCO file.

Records: `image`, the bytes of an image of 128 × 128 pixels, and `boxes`, [n, 4]: left, top, right, bottom of each coin in pixels. The image
is divided into 8 × 8 cells. A cell says whether the middle of a coin is in it, where in the cell, and how wide and high the coin is: the
form that YOLO has for one class.
"""

import keras
import numpy as np
import tensorflow as tf

SIDE, CELL = 128, 16
CELLS = SIDE // CELL


def custom_model(filters=16):
    inputs = keras.Input((SIDE, SIDE, 1), name="image")
    x = inputs
    for factor in (1, 2, 4, 4):
        x = keras.layers.Conv2D(factor * filters, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.Conv2D(4 * filters, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, keras.layers.Conv2D(5, 1)(x), name="coins")


def loss(labels, predictions):
    there = labels[..., 0]
    seen = keras.ops.mean(keras.losses.binary_crossentropy(there, predictions[..., 0], from_logits=True))
    apart = keras.ops.sum(keras.ops.abs(labels[..., 1:] - predictions[..., 1:]), axis=-1)
    return seen + keras.ops.sum(there * apart) / keras.ops.maximum(keras.ops.sum(there), 1.0) / 4


def optimizer(lr=3e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(record):
        image = tf.io.decode_image(record["image"], channels=1, expand_animations=False)
        pixels = tf.cast(tf.ensure_shape(image, [SIDE, SIDE, 1]), tf.float32) / 255.0
        return pixels if mode == "prediction" else (pixels, cells_of(record["boxes"]))

    return dataset.map(parse)


def cells_of(boxes):
    """Return what cells say that are right, [8, 8, 5]: there or not, middle across and down in the cell, width and height in cells."""
    middles, sizes = (boxes[:, :2] + boxes[:, 2:]) / (2 * CELL), (boxes[:, 2:] - boxes[:, :2]) / CELL
    places = tf.minimum(tf.cast(middles, tf.int32), CELLS - 1)
    values = tf.concat([tf.ones_like(middles[:, :1]), middles - tf.cast(places, tf.float32), sizes], axis=1)
    return tf.tensor_scatter_nd_update(tf.zeros([CELLS, CELLS, 5]), places[:, ::-1], values)


class There(keras.metrics.BinaryAccuracy):
    """How many cells say rightly whether there is a coin."""

    def update_state(self, labels, predictions, sample_weight=None):
        super().update_state(labels[..., :1], keras.ops.sigmoid(predictions[..., :1]))


def eval_metrics_fn():
    return {"there": There()}


def boxes_of(cells, least=0.5):
    """Return the boxes that a model finds, [n, 4], in the pixels of its image; `cells`: its prediction, [8, 8, 5]."""
    rows, columns = np.nonzero(cells[..., 0] > np.log(least / (1 - least)))
    found = cells[rows, columns]
    middles = (np.stack([columns, rows], axis=1) + found[:, 1:3]) * CELL
    half = found[:, 3:5] * CELL / 2
    return np.concatenate([middles - half, middles + half], axis=1)
