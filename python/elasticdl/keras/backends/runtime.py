"""Keras on another library than TensorFlow in one process: the import, the threads, and the randomness of a chunk that Keras does not seed.

Models are trained on CPUs.
"""

from __future__ import annotations

import importlib
import os
import random
import sys

import numpy as np

from elasticdl.errors import BadSetting
from elasticdl.keras.runtime import BACKEND, quick_import

LIBRARIES = {"jax": "JAX", "torch": "PyTorch"}
"""What Keras computes with, by its own names, and as people call it."""


def check(backend: str) -> None:
    """Raise BadSetting if Keras was told, or has begun, to compute with something else in this process."""
    asked = os.environ.get(BACKEND, backend)
    if asked != backend:
        raise BadSetting(
            f"{BACKEND}={asked}: the job was submitted with {BACKEND}={backend} (--framework=keras_{backend}); all of its processes have "
            "to compute with the same library: unset it where workers run, or submit the job with the same value"
        )
    if "keras" not in sys.modules:
        return
    import keras

    if keras.backend.backend() != backend:
        raise BadSetting(
            f"{BACKEND}: this process has imported Keras with {keras.backend.backend()} already, which can't be changed; set "
            f"{BACKEND}={backend} before the import"
        )


def import_keras(backend: str) -> None:
    """Import Keras and what it computes with. Raises BadSetting if one is not installed, or Keras computes with something else."""
    check(backend)
    os.environ |= {BACKEND: backend, "JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
    for module, name in ((backend, LIBRARIES[backend]), ("keras", "Keras")):
        try:
            quick_import(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in (module, "jaxlib"):
                raise
            raise BadSetting(
                f"{BACKEND}={backend}: {name} is not installed where workers run; pip install 'elasticdl[{backend}]' keras does"
            ) from None


def start(backend: str, threads: int) -> None:
    """Import them, and let one operation be shared by so many threads; call it once, before anything is computed."""
    os.environ["PJRT_NPROC"] = str(threads)  # JAX reads it when the first array is made
    import_keras(backend)
    if backend == "torch":
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != 1:  # it can be set once
            torch.set_num_interop_threads(1)


def seed_python(first: int, second: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch, from which a model of the user's own may draw beside those of Keras."""
    random.seed(first)
    np.random.seed(second)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(first << 31 | second)
