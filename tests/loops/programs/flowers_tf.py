"""Iris flowers in TensorFlow with a tape, dropout and a schedule, at the pace of a larger model: `flowers_tf.py DATA RESULT`.

It is `examples/custom_loops/tensorflow_digits.py` with a batch that never changes, so that a job has the bits of the program alone.
"""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import elasticdl

tf.config.threading.set_intra_op_parallelism_threads(1)
SECONDS = float(os.environ.get("PACE", "0.5"))
"""Of a batch, while the file in the environment variable GO is missing: faults have their moments."""

job = elasticdl.init(seed=3)
keras.utils.set_random_seed(3)
table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1, dtype=np.float32)
rows, truth = table[:, :4], table[:, 4].astype(np.int32)
hidden = keras.Sequential(
    [keras.Input([4]), keras.layers.Dense(16, "relu"), keras.layers.LayerNormalization()]
)
output = keras.layers.Dense(3)
output.build([None, 16])
optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.02, 24, 0.7))
variables = [*hidden.trainable_variables, *output.trainable_variables]
optimizer.build(variables)
job.state["model"] = variables
job.state["optimizer"] = optimizer.variables


@tf.function
def compute(rows, truth, seed):
    with tf.GradientTape() as tape:
        inner = tf.nn.experimental.stateless_dropout(hidden(rows, training=True), 0.1, seed)
        losses = keras.losses.sparse_categorical_crossentropy(truth, output(inner), from_logits=True)
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, variables)


@tf.function
def update(mean):
    optimizer.apply_gradients(zip(mean, variables, strict=True))


def write(path):
    with open(path, "wb") as file:
        np.savez(file, **{one.path: one.numpy() for one in variables})


job.result(write)
for chunk in job.chunks(
    len(rows), batch_size=8, num_epochs=int(os.environ["EPOCHS"]), global_batch_size=16, parameters=variables
):
    loss, gradients = compute(rows[chunk], truth[chunk], tf.constant([job.chunk_seed % 2**31, 0]))
    mean = job.step(gradients, loss=float(loss))
    if mean is not None:
        update(mean)
    if "GO" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)
job.print(f"trained to step {job.steps}")
if len(sys.argv) > 2:
    write(sys.argv[2])
