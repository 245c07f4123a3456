"""What wants a process group of torch.distributed, which workers of a job don't have: refused with what to write instead.

A group of this kind can't lose or gain a process. ElasticDL's own does what it is for.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch

from elasticdl.errors import BadModel
from elasticdl.worker.modelfile import describe

_GROUPED = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel, torch.nn.SyncBatchNorm)
_SHARDED = "torch.distributed.fsdp"
_PLACES = ("torch.distributed.", "torch.nn.parallel.", "torch.utils.data.distributed")
"""Modules that raise where there is no group: those of torch.distributed, and their users."""


def refuse_grouped(model: torch.nn.Module, path: Any) -> None:
    """Raise BadModel if a module of the model wants a group. `path`: of the file, for messages."""
    for module in model.modules():
        if isinstance(module, _GROUPED) or any(
            one.__module__.startswith(_SHARDED) for one in type(module).__mro__
        ):
            raise BadModel(
                f"{path}: the model has a {type(module).__name__}, which wants a process group; ElasticDL averages gradients itself, "
                "and the statistics of batch normalization with them: use the plain module"
            )


def refused_group(error: BaseException, path: Path) -> BadModel | None:
    """Return what is said if an error of the model file is that something found no group, None for other errors."""
    frames = [
        (str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    if not frames or not frames[-1][0].startswith(_PLACES):
        return None
    called = [name for module, name in frames if module.startswith(_PLACES) and "<locals>" not in name]
    name = called[0].removesuffix(".__init__") if called else "torch.distributed"
    return BadModel(
        f"{path}: {name} wants a process group, and workers of a job have none: ElasticDL deals out the data, and averages gradients and "
        f"the statistics of batch normalization itself. Use the plain module, sampler or optimizer, and leave {name} out "
        f"({describe(error, path)})"
    )
