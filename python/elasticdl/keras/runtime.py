"""The TensorFlow runtime of one process: what must be settled before TensorFlow and Keras are imported.

It trains nothing. Importing them is most of a worker's start, so what a worker never needs is left out, and the number of
threads is fixed here because the bits of a convolution's gradient depend on it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.keras.greeting import greeting_to
from elasticdl.worker import gpus
from elasticdl.worker.imports import uncollected

BACKEND = "KERAS_BACKEND"
"""The environment variable that chooses what Keras computes with."""
_PLOTTING = ("matplotlib", "matplotlib.pyplot", "matplotlib.patches", "IPython")
"""What Keras imports for its galleries of images and its editor of files, if it is installed: a tenth of the start."""


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import itself looks for
            raise AttributeError(f"{self.__name__} has not been imported yet: {name}")
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def later(*modules: str) -> Iterator[None]:
    """Let what is imported meanwhile import these modules only when it uses them, if they are there; packages come before their parts.

    What is imported afterwards gets the modules themselves.
    """
    known = {name for name in modules if "." not in name and (name in sys.modules or find_spec(name) is None)}
    stubs = {name: _Later(name) for name in modules if name.partition(".")[0] not in known}
    for name, stub in stubs.items():
        package, _, part = name.rpartition(".")
        if package:
            setattr(stubs[package], part, stub)
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


@contextmanager
def without(module: str) -> Iterator[None]:
    """Make `import module` fail meanwhile, unless it has been imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the documented way to block an import
    try:
        yield
    finally:
        del sys.modules[module]


def start(threads: int) -> None:
    """Import TensorFlow and Keras, and fix how this process uses processors and GPUs; call it once, before anything else.

    Raises RuntimeError if TensorFlow has computed something already.
    """
    import_keras()
    set_threads(threads)
    share_gpus()


def import_keras(log: Path | None = None) -> None:
    """Import TensorFlow and Keras, and say no more than has to be said.

    `log`: where TensorFlow's lines of information go, in a process whose standard error is a person's; to see them set
    TF_CPP_MIN_LOG_LEVEL to 0 or 1.
    """
    os.environ.setdefault(BACKEND, "tensorflow")
    check_backend()
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if level in ("0", "1") or "tensorflow" in sys.modules:
        log = None
    # TensorFlow imports JAX, where it is installed, for converters of JAX models to another format: a tenth of the start.
    with greeting_to(log) if log else nullcontext(), without("jax"):
        quick_import("keras")


def quick_import(module: str) -> None:
    """Import Keras, or what it computes with."""
    # Keras imports scikit-learn, where it is installed, for three wrapper classes that no training loop uses: a fifth of the start.
    with without("sklearn"), later(*_PLOTTING), uncollected():
        importlib.import_module(module)


def check_backend() -> None:
    """Raise BadSetting if the environment has another backend for Keras than TensorFlow."""
    backend = os.environ.get(BACKEND, "tensorflow")
    if backend != "tensorflow":
        raise BadSetting(
            f"{BACKEND}={backend}: the job was submitted for Keras on TensorFlow; unset it where workers run, or submit the job with the "
            "same value"
        )


def set_threads(threads: int) -> None:
    """Fix the threads that share one operation; results depend on their number in their last bits.

    Two operations may run at once, whatever the number: one of the step, one of the feed that reads ahead. With a single
    thread for both, each waits for the other, which costs a third of the throughput. Threads that have nothing to do sleep at once: by
    default they go on looking for work for a while, with processors that other processes of the job want.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    # Nothing public says it; TensorFlow copies what stands here when it begins to compute.
    context.context()._config = config_pb2.ConfigProto(
        experimental=config_pb2.ConfigProto.Experimental(disable_thread_spinning=True)
    )
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def share_gpus() -> None:
    """Let this process take memory of its GPUs as it needs it, so that several workers fit on one; TensorFlow takes all of it by default.

    Raises RuntimeError if TensorFlow has computed something already.
    """
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def unused_gpus(reserved: int) -> str:
    """Return what is wrong if GPUs are reserved for this process and TensorFlow sees none, and what to do; empty if nothing is."""
    import tensorflow as tf

    if not reserved or tf.config.list_physical_devices("GPU"):
        return ""
    if not tf.test.is_built_with_gpu_support():
        why = gpus.built_for_cpus("build the image with `elasticdl zoo build --gpu`")
    else:
        why = (
            "its CUDA libraries or the node's driver are missing or do not fit, the worker's log has its reason; build the image with "
            f"`elasticdl zoo build --gpu`, and {gpus.LOOK}"
        )
    return gpus.unused_gpus("TensorFlow", reserved, why)
