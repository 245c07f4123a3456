"""The JAX runtime of one process: CPUs only, its threads, which results depend on in their last bits, and the randomness of a chunk."""

from __future__ import annotations

import importlib
import os
import random

import numpy as np
import numpy.typing as npt

from elasticdl.worker.imports import uncollected
from elasticdl.worker.seeds import chunk_seeds


def import_jax() -> None:
    """Import JAX, Flax and optax, for CPUs whatever else is there."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    with uncollected():
        for name in ("jax", "flax.nnx", "optax"):
            importlib.import_module(name)


def start(threads: int) -> None:
    """Import JAX, and let one operation be shared by so many threads; call it once, before anything is computed."""
    os.environ["PJRT_NPROC"] = str(threads)  # read when the first array is made
    import_jax()
    import jax

    jax.config.update("jax_platforms", "cpu")  # JAX may have been imported before


def seeds_of(seed: int, step: int, lane: int) -> npt.NDArray[np.uint32]:
    """Return the two numbers that are folded into all keys of a model for one chunk: the same in all workers."""
    return np.asarray(chunk_seeds(seed, step, lane, 1)[0], np.uint32)


def seed_python(seed: int) -> None:
    """Seed what a model may draw from without JAX, where it is built or traced: what is drawn there is a constant of all workers."""
    first, second = chunk_seeds(seed, 0, 0, 1)[0].tolist()
    random.seed(first)
    np.random.seed(second)
