"""Flowers in MXNet with momentum, a schedule and dropout, at the pace of a larger model: `flowers_mxnet.py DATA RESULT`.

The gradients are the program's own: `elasticdl.init` knows no framework. MXNet's arrays are none of NumPy's, so an object gives and takes
what is kept.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import elasticdl
from elasticdl.mxnet import import_mxnet

import_mxnet()
import mxnet as mx  # noqa: E402  # NumPy lacks a name that it looks up

SECONDS = float(os.environ.get("PACE", "0.5"))
"""Of a batch, while the file in the environment variable GO is missing: faults have their moments."""


class Kept:
    """Weights and momentum of a model."""

    def __init__(self, params):
        self.params = params
        self.momentum = [mx.nd.zeros_like(one.data()) for one in params]

    def state_dict(self):
        weights = [one.data().asnumpy() for one in self.params]
        return {"weights": weights, "momentum": [one.asnumpy() for one in self.momentum]}

    def load_state_dict(self, state):
        for one, value in zip(self.params, state["weights"], strict=True):
            one.set_data(mx.nd.array(value, dtype=value.dtype))
        for one, value in zip(self.momentum, state["momentum"], strict=True):
            one[:] = value

    def apply(self, mean, rate):
        for param, momentum, gradient in zip(self.params, self.momentum, mean, strict=True):
            momentum[:] = 0.9 * momentum + mx.nd.array(gradient)
            param.set_data(param.data() - rate * momentum)


job = elasticdl.init(seed=3)
table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1, dtype=np.float32)
mx.random.seed(3)
model = mx.gluon.nn.HybridSequential()
model.add(
    mx.gluon.nn.Dense(16, "relu", in_units=4), mx.gluon.nn.Dropout(0.1), mx.gluon.nn.Dense(3, in_units=16)
)
model.initialize(mx.init.Xavier())
model.hybridize()
kept = Kept(list(model.collect_params().values()))
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
job.state["model"], job.state["seen"] = kept, 0


def write(path):
    weights = {str(place): one.data().asnumpy() for place, one in enumerate(kept.params)}
    with open(path, "wb") as file:
        np.savez(file, **weights, seen=job.state["seen"])


job.result(write)
for chunk in job.chunks(
    len(table),
    batch_size=8,
    num_epochs=int(os.environ["EPOCHS"]),
    global_batch_size=16,
    parameters=[one.data().asnumpy() for one in kept.params],
):
    mx.random.seed(job.chunk_seed % 2**31)
    with mx.autograd.record():
        loss = loss_of(model(mx.nd.array(table[chunk, :4])), mx.nd.array(table[chunk, 4])).mean()
    loss.backward()
    mean = job.step([one.grad().asnumpy() for one in kept.params], loss=float(loss.asscalar()))
    if mean is not None:
        kept.apply(mean, 0.05 * 0.9**job.epoch)
        job.state["seen"] += 16
    if "GO" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)
job.print(f"trained to step {job.steps}")
if len(sys.argv) > 2:
    write(sys.argv[2])
