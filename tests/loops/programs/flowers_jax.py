"""Iris flowers in JAX with optax and dropout, at the pace of a larger model: `flowers_jax.py DATA RESULT`.

It is `examples/custom_loops/jax_digits.py` with a batch that never changes, so that a job has the bits of the program alone.
"""

import os
import sys
import time
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "1"}

import jax
import jax.numpy as jnp
import numpy as np
import optax

import elasticdl

SECONDS = float(os.environ.get("PACE", "0.5"))
"""Of a batch, while the file in the environment variable GO is missing: faults have their moments."""

job = elasticdl.init(seed=3)
table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1, dtype=np.float32)
rows, truth = table[:, :4], table[:, 4].astype(np.int32)
first, second = jax.random.split(jax.random.key(1))
parameters = {
    "hidden": {"w": 0.3 * jax.random.normal(first, (4, 16)), "b": jnp.zeros(16)},
    "output": {"w": 0.3 * jax.random.normal(second, (16, 3)), "b": jnp.zeros(3)},
}
optimizer = optax.adamw(optax.exponential_decay(0.02, 24, 0.7))
job.state["parameters"] = parameters
job.state["optimizer"] = optimizer.init(parameters)


@jax.jit
@jax.value_and_grad
def compute(parameters, seed, rows, truth):
    hidden = jax.nn.relu(rows @ parameters["hidden"]["w"] + parameters["hidden"]["b"])
    kept = jax.random.bernoulli(jax.random.key(seed), 0.9, hidden.shape)
    outputs = jnp.where(kept, hidden / 0.9, 0) @ parameters["output"]["w"] + parameters["output"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(outputs, truth).mean()


@jax.jit
def apply(parameters, state, mean):
    changes, state = optimizer.update(mean, state, parameters)
    return optax.apply_updates(parameters, changes), state


def write(path):
    # what is done at the end takes as long as with a larger model: faults have their moments in the final view
    while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
        time.sleep(0.05)
    flat = jax.tree_util.tree_flatten_with_path(job.state["parameters"])[0]
    with open(path, "wb") as file:
        np.savez(file, **{jax.tree_util.keystr(name): array for name, array in flat})


job.result(write)
for chunk in job.chunks(
    len(rows), batch_size=8, num_epochs=int(os.environ["EPOCHS"]), global_batch_size=16, parameters=parameters
):
    loss, gradients = compute(job.state["parameters"], job.chunk_seed % 2**31, rows[chunk], truth[chunk])
    mean = job.step(gradients, loss=float(loss))
    if mean is not None:
        job.state["parameters"], job.state["optimizer"] = apply(
            job.state["parameters"], job.state["optimizer"], mean
        )
    if "GO" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)
job.print(f"trained to step {job.steps}")
if len(sys.argv) > 2:
    write(sys.argv[2])
