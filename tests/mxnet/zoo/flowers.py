"""Iris flowers at the pace of a larger model, with everything that a model file for MXNet may have."""

import os
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from elasticdl.mxnet import Callback

SECONDS = 0.3
"""Of a step, while the file in the environment variable GO is missing: faults have their moments."""


class Pace(Callback):
    def on_step_end(self, logs):
        if not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)


def custom_model(units=16):
    model = nn.HybridSequential()
    model.add(nn.Dense(units), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.1), nn.Dense(3))
    model.initialize(mx.init.Xavier())
    model.hybridize()
    return model


loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    schedule = mx.lr_scheduler.FactorScheduler(60, factor=0.7, base_lr=0.02)
    return mx.optimizer.Adam(learning_rate=0.02, wd=0.001, lr_scheduler=schedule)


def feed(records, mode, metadata):
    features = np.asarray([row[:4] for row in records], np.float32)
    if mode == "prediction":
        return features
    return features, np.asarray([row[4] for row in records], np.float32)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, outputs: labels == outputs.argmax(axis=1),
        "top2": mx.metric.TopKAccuracy(2),
    }


def callbacks():
    return [Pace()]
