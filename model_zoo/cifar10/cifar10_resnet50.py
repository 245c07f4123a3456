"""Pictures of ten classes with Keras' ResNet50, from random weights; records as in `cifar10_functional_api`."""

import keras

from cifar10.cifar10_functional_api import CLASSES, SIDE, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model():
    return keras.applications.ResNet50(
        weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES, classifier_activation=None
    )
