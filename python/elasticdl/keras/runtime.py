"""The TensorFlow runtime of one process: what must be settled before TensorFlow and Keras are imported.

It trains nothing. Importing them is most of a worker's start, so what a worker never needs is left out, and the number of
threads is fixed here because the bits of a convolution's gradient depend on it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from elasticdl.keras.greeting import greeting_to


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Make `import module` fail meanwhile, unless it has been imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the documented way to block an import
    try:
        yield
    finally:
        del sys.modules[module]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let the garbage collector look neither meanwhile nor later at what is made now: modules stay, and there are many of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def start(threads: int) -> None:
    """Import TensorFlow and Keras, and fix the number of threads with which an operation computes; call it once, before anything else.

    Raises RuntimeError if TensorFlow has computed something already.
    """
    import_keras()
    set_threads(threads)


def import_keras(log: Path | None = None) -> None:
    """Import TensorFlow and Keras, and say no more than has to be said.

    `log`: where TensorFlow's lines of information go, in a process whose standard error is a person's; whoever wants to see them sets
    TF_CPP_MIN_LOG_LEVEL to 0 or 1.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if level in ("0", "1") or "tensorflow" in sys.modules:
        log = None
    # Keras imports scikit-learn, where it is installed, for three wrapper classes that no training loop uses: a fifth of the start.
    with greeting_to(log) if log else nullcontext(), _without("sklearn"), _uncollected():
        importlib.import_module("keras")


def set_threads(threads: int) -> None:
    """Fix the threads that share one operation; results depend on their number in their last bits.

    Two operations may run at once, whatever the number: one of the step, one of the feed that reads ahead. With a single
    thread for both, each waits for the other, which costs a third of the throughput.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)
