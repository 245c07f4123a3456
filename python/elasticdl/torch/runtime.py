"""The PyTorch runtime of one process: its threads, which results depend on in their last bits, and the randomness of a chunk."""

from __future__ import annotations

import importlib
import random
import sys

import numpy as np

from elasticdl.worker import gpus
from elasticdl.worker.imports import uncollected
from elasticdl.worker.seeds import chunk_seed

_SIZES = 64
"""Numbers of examples for which code is made; for others the model would run uncompiled, with other bits."""


def import_torch() -> None:
    """Import PyTorch."""
    with uncollected():
        importlib.import_module("torch")


def start(threads: int) -> None:
    """Import PyTorch, and let one operation be shared by so many threads; call it once, before anything is computed."""
    import_torch()
    import torch

    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # it can be set once
        torch.set_num_interop_threads(1)


def unused_gpus(reserved: int) -> str:
    """Return what is wrong if GPUs are reserved for this process and PyTorch sees none, and what to do; empty if nothing is."""
    import torch

    if not reserved or torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        why = gpus.built_for_cpus("put PyTorch for CUDA into the image")
    else:
        why = f"the node's driver is missing or older than PyTorch's CUDA {torch.version.cuda}; {gpus.LOOK}"
    return gpus.unused_gpus("PyTorch", reserved, why)


def settle_compiler() -> None:
    """Let `torch.compile`, if the model file has used it, make code for each number of examples, whichever came before.

    By itself it makes code for any number when a second one comes, with other bits for the first. So a chunk that is computed again would
    have other bits in a worker that has seen other chunks.
    """
    if "torch._dynamo" in sys.modules:
        import torch._dynamo.config as compiler

        compiler.automatic_dynamic_shapes = False
        compiler.recompile_limit = max(compiler.recompile_limit, _SIZES)


def seed_chunk(seed: int, step: int, lane: int) -> None:
    """Seed all generators that a model may draw from: a function of the job's seed and of the chunk's place, the same in all workers."""
    import torch

    first, second = _seed(seed, step, lane, 0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(first << 31 | second)


def seed_reading(seed: int, epoch: int, batch: int) -> None:
    """Seed what a data set may draw from while it reads a batch, on the CPU: other numbers than those of any chunk."""
    _seed(seed, epoch, batch, 1)


def _seed(seed: int, first_place: int, second_place: int, use: int) -> tuple[int, int]:
    import torch

    first, second = chunk_seed(seed, first_place, second_place, use)
    # The generator itself: torch.manual_seed also looks at every kind of device, which takes a hundred times as long.
    torch.default_generator.manual_seed(first << 31 | second)
    random.seed(first)
    np.random.seed(second)  # what layers of the user's own may draw from
    return first, second
