"""Where a process computes: on its CUDA device if it sees one. What a person's code and files get are tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def own_device() -> torch.device:
    """Return the device on which this process computes: the first that it sees, or the CPU. CUDA_VISIBLE_DEVICES says which it sees."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pinned(tensors: Any, device: torch.device) -> Any:
    """Return a tree of tensors in memory from which a copy to a CUDA device runs by itself; callable from every thread."""
    return (
        tensors
        if device.type == "cpu"
        else _mapped(tensors, lambda one: separate(one).pin_memory() if one.device.type == "cpu" else one)
    )


def separate(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without what `expand` has repeated in the same memory: PyTorch does not copy such to pinned memory."""
    repeated = tensor.layout == torch.strided and any(
        size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.contiguous() if repeated else tensor


def moved(tensors: Any, device: torch.device) -> Any:
    """Return a tree of tensors on a device; what is pinned is copied in the order of the device's work, without a wait."""
    return (
        tensors if device.type == "cpu" else _mapped(tensors, lambda one: one.to(device, non_blocking=True))
    )


def on_cpu(tensors: Any) -> Any:
    """Return a tree with tensors of the CPU for those of a device; all of it as it is where nothing is on one."""
    return _mapped(tensors, torch.Tensor.cpu) if _elsewhere(tensors) else tensors


def _elsewhere(tensors: Any) -> bool:
    if isinstance(tensors, Mapping):
        return any(map(_elsewhere, tensors.values()))
    if isinstance(tensors, tuple | list):
        return any(map(_elsewhere, tensors))
    return isinstance(tensors, torch.Tensor) and tensors.device.type != "cpu"


def _mapped(tensors: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tensors, Mapping):
        return {name: _mapped(one, change) for name, one in tensors.items()}
    if isinstance(tensors, tuple | list):
        made = [_mapped(one, change) for one in tensors]
        return made if isinstance(tensors, list) else tuple(made)
    return change(tensors) if isinstance(tensors, torch.Tensor) else tensors
