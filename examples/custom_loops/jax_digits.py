"""A custom training loop in JAX: handwritten digits, with `jax.value_and_grad` and optax.

pip install jax optax
python examples/custom_loops/jax_digits.py
elasticdl run --num_workers=3 --output=digits.npz -- python examples/custom_loops/jax_digits.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import elasticdl

job = elasticdl.init(seed=1)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)

first, second = jax.random.split(jax.random.key(1))
parameters = {
    "hidden": {"w": 0.1 * jax.random.normal(first, (64, 32)), "b": jnp.zeros(32)},
    "output": {"w": 0.1 * jax.random.normal(second, (32, 10)), "b": jnp.zeros(10)},
}
optimizer = optax.adam(0.01)
job.state["parameters"] = parameters
job.state["optimizer"] = optimizer.init(parameters)


def classify(parameters, rows):
    hidden = jax.nn.relu(rows @ parameters["hidden"]["w"] + parameters["hidden"]["b"])
    return hidden @ parameters["output"]["w"] + parameters["output"]["b"]


@jax.jit
@jax.value_and_grad
def compute(parameters, rows, truth):
    return optax.softmax_cross_entropy_with_integer_labels(classify(parameters, rows), truth).mean()


@jax.jit
def apply(parameters, state, mean):
    changes, state = optimizer.update(mean, state, parameters)
    return optax.apply_updates(parameters, changes), state


def write(path):
    flat = jax.tree_util.tree_flatten_with_path(job.state["parameters"])[0]
    with open(path, "wb") as file:
        np.savez(file, **{jax.tree_util.keystr(name): array for name, array in flat})


job.result(write)
for chunk in job.chunks(len(images), batch_size=32, num_epochs=5, parameters=parameters):
    loss, gradients = compute(job.state["parameters"], images[chunk], labels[chunk])
    mean = job.step(gradients, loss=float(loss))
    if mean is not None:
        job.state["parameters"], job.state["optimizer"] = apply(
            job.state["parameters"], job.state["optimizer"], mean
        )

accuracy = float((classify(job.state["parameters"], images).argmax(1) == labels).mean())
job.print(f"accuracy {accuracy:.3f} after {job.steps} steps")
