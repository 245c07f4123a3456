"""A network of 5.3 million parameters in MXNet: a model file, and as `steps_mxnet.py DATA EPOCHS` the plain loop with a Trainer."""

import sys

import numpy as np

if __name__ == "__main__":
    from elasticdl.spec import framework

    framework.find("mxnet").start(1)

import mxnet as mx
import pyarrow.parquet
from mxnet.gluon import nn

from benchmarks.moments import Measuring, Moments

BATCH = 64


def custom_model():
    model = nn.HybridSequential()
    model.add(
        nn.Dense(1900, activation="relu", in_units=784),
        nn.Dense(2000, activation="relu", in_units=1900),
        nn.Dense(10, in_units=2000),
    )
    model.initialize(mx.init.Xavier())
    model.hybridize()
    return model


loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def optimizer():
    return mx.optimizer.SGD(learning_rate=0.01, momentum=0.9)


def feed(records, mode, metadata):
    return records["row"], records["label"].astype(np.float32)


def callbacks():
    return [Measuring()]


def main(data, epochs):
    table = pyarrow.parquet.read_table(data)
    rows = np.stack(table["row"].to_numpy())
    labels = table["label"].to_numpy().astype(np.float32)
    model = custom_model()
    trainer = mx.gluon.Trainer(model.collect_params(), optimizer(), kvstore=None)
    moments = Moments()
    for _ in range(epochs):
        for first in range(0, len(rows), BATCH):
            features, truth = (
                mx.nd.array(rows[first : first + BATCH]),
                mx.nd.array(labels[first : first + BATCH]),
            )
            with mx.autograd.record():
                value = loss(model(features), truth)
            value.backward()
            trainer.step(BATCH)
            mx.nd.waitall()
            moments.end_step()
    moments.write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
