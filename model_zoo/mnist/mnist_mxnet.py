"""Handwritten digits with a small convolutional network in MXNet (Gluon).

Records: columns `image` (784 bytes, 28 × 28) and `label`, as `make_data.py --parquet` writes them.
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn


def custom_model(filters=16, dropout=0.5):
    model = nn.HybridSequential()
    model.add(
        nn.Conv2D(filters, 3, activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(2 * filters, 3),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Dense(10),
    )
    model.initialize(mx.init.Xavier())
    model.hybridize()
    return model


loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    schedule = mx.lr_scheduler.FactorScheduler(100, factor=0.7, base_lr=2e-3)
    return mx.optimizer.Adam(learning_rate=2e-3, lr_scheduler=schedule)


def feed(records, mode, metadata):
    pixels = np.frombuffer(b"".join(records["image"]), np.uint8).reshape(-1, 1, 28, 28)
    images = pixels.astype(np.float32) / 255
    return images if mode == "prediction" else (images, np.asarray(records["label"], np.float32))


def eval_metrics_fn():
    return {"accuracy": mx.metric.Accuracy()}
