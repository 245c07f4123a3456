import os
import time
from pathlib import Path

import tensorflow as tf
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler

import deepfm
from deepfm import custom_model, eval_metrics_fn, feed, optimizer  # noqa: F401

SECONDS = 0.05
"""Of a step, while the file in the environment variable GO is missing: faults have their moments."""


def _wait():
    if not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)


def loss(labels, predictions):
    with tf.control_dependencies([tf.numpy_function(_wait, [], [])]):
        return deepfm.loss(labels, predictions)


def callbacks():
    return [LearningRateScheduler(lambda step: 0.1 * 0.999**step)]
