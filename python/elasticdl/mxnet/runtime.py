"""The MXNet runtime of one process: what NumPy has lost since MXNet's last version, its threads, and the randomness of a chunk."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random

import numpy as np

from elasticdl.errors import BadSetting
from elasticdl.worker.seeds import chunk_seeds

_LIBRARIES = {"libgomp": "libgomp1", "libquadmath": "libquadmath0"}
"""Shared libraries that MXNet's wheel expects of the system, and Debian's packages of them."""


def import_mxnet() -> None:
    """Import MXNet. Raises ModuleNotFoundError if it is not installed, BadSetting if it can't be imported here."""
    if int(np.__version__.partition(".")[0]) >= 2 and importlib.util.find_spec("mxnet") is not None:
        raise BadSetting(f"MXNet needs a NumPy below 2, and here is {np.__version__}; pip install 'numpy<2'")
    if "bool" not in vars(np):
        # MXNet 1.9.1 is its last version; NumPy 1.24 removed this name of Python's type, the only one of those that MXNet looks up
        vars(np)["bool"] = bool
    try:
        importlib.import_module("mxnet")
    except OSError as error:
        package = next((name for library, name in _LIBRARIES.items() if library in str(error)), "")
        remedy = f"; install Debian's package {package}" if package else ""
        raise BadSetting(f"MXNet can't be loaded here: {error}{remedy}") from None


def fix_threads(threads: int) -> None:
    """Let one operation be shared by so many threads; call it once, before MXNet is imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["MXNET_ENGINE_TYPE"] = "ThreadedEnginePerDevice"
    os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"


def seed_chunk(seed: int, step: int, lane: int) -> None:
    """Seed all generators that a model may draw from: a function of the job's seed and of the chunk's place, the same in all workers."""
    import mxnet as mx

    first, second = chunk_seeds(seed, step, lane, 1)[0].tolist()
    mx.random.seed(first, ctx=mx.cpu())
    random.seed(first)
    np.random.seed(second)  # what initializers, and layers of the user's own, may draw from
