"""Pictures of ten classes with Keras' MobileNetV2, from random weights; records as in `cifar10_functional_api`."""

import keras

from cifar10.cifar10_functional_api import CLASSES, SIDE, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(alpha=1.0):
    return keras.applications.MobileNetV2(
        (SIDE, SIDE, 3), alpha=alpha, weights=None, classes=CLASSES, classifier_activation=None
    )
