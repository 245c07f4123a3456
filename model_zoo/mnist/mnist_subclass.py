"""Handwritten digits with a subclassed model with batch normalization and dropout; records as in `mnist_functional_api`."""

import keras

from mnist.mnist_functional_api import eval_metrics_fn, feed, loss

__all__ = ["Digits", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable(package="mnist")
class Digits(keras.Model):
    def __init__(self, filters=16, dropout=0.25, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.rate = dropout
        self.convolution = keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)
        self.normalization = keras.layers.BatchNormalization()
        self.flatten = keras.layers.Flatten()
        self.dropout = keras.layers.Dropout(dropout)
        self.dense = keras.layers.Dense(10)

    def call(self, images, training=False):
        x = self.convolution(images)
        x = keras.ops.relu(self.normalization(x, training=training))
        x = self.dropout(self.flatten(x), training=training)
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "filters": self.filters, "dropout": self.rate}


def custom_model(filters=16, dropout=0.25):
    return Digits(filters, dropout, name="mnist")


def optimizer(lr=0.05):
    return keras.optimizers.SGD(lr, momentum=0.9)
