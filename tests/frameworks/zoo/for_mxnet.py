import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from elasticdl.mxnet import Callback

WRITTEN = []


def custom_model():
    model = nn.HybridSequential()
    model.add(nn.Dense(8), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(0.3), nn.Dense(3))
    model.initialize(mx.init.Xavier())
    return model


loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    return mx.optimizer.Adam(learning_rate=0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :4], rows[:, 4]


class Written(Callback):
    def on_train_end(self, step, writes):
        WRITTEN.append((step, writes))


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, outputs: labels == outputs.argmax(axis=1),
        "right": mx.metric.Accuracy(),
    }


def callbacks():
    return [Written()]
