"""Looking whether tensors are finite, as fast as memory is read.

The core reads large ones on the host, at a place of its own for each call; all others are asked for their norms, together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from elasticdl.worker.finite import all_finite

LARGE = 256 << 10
"""Elements from which on the core is faster than a norm by more than its call costs."""
_FEW = 8
"""Norms that are read one by one faster than together."""


def is_for_core(tensor: torch.Tensor) -> bool:
    """Tell whether the core is the faster one for a tensor, and can read it."""
    return (
        tensor.numel() >= LARGE
        and tensor.is_cpu
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def is_finite_by_core(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor that is for the core has no NaN and no infinity."""
    return all_finite(tensor.detach().numpy())


def are_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether no tensor has a NaN or an infinity."""
    others = []
    for one in tensors:
        if not is_for_core(one):
            others.append(one)
        elif not is_finite_by_core(one):
            return False
    if not others:
        return True
    # a norm of finite numbers is finite nearly always: the exact look is for the rest
    norms = torch._foreach_norm(others)
    few = len(others) <= _FEW and others[0].is_cpu
    total = sum(map(float, norms)) if few else float(torch.stack(norms).sum())
    return math.isfinite(total) or all(bool(torch.isfinite(one).all()) for one in others)
