"""How a worker imports a large library: most of its start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector look neither meanwhile nor later at what is made now: modules stay, and there are many of them.

    It costs a third of PyTorch's import and of Keras', with the collection at the end of the process.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
