"""Writing the trained model for plain users of PyTorch: its state_dict, or the model itself as torch.export makes it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from elasticdl.errors import BadModel
from elasticdl.files.output import made_beside
from elasticdl.torch.building import plain
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.modelfile import describe


def export(model: torch.nn.Module, path: str, kind: str, sample: Batch | None, source: Path) -> None:
    """Write to exactly `path`, for machines without a GPU too; what was there is replaced at the end.

    Args:
        model: as trained; it is in evaluation mode afterwards.
        path: of the file.
        kind: `state_dict`, which `torch.load(path, weights_only=True)` reads, or `exported`, which `torch.export.load` reads.
        sample: a batch, for `exported`; None without data.
        source: the model file, for messages.

    Raises OSError with what was at `path` intact; BadModel for a model that torch.export can't take.
    """
    model = plain(model).eval()
    if kind == "state_dict":
        with made_beside(path, "model.pt") as written:
            torch.save(on_cpu(model.state_dict()), written)
        return
    if sample is None:
        raise BadModel(
            f"{source}: a model is exported by trying it on a batch, and there is no data here; use --output_format=state_dict"
        )
    if any(one.device.type != "cpu" for one in model.parameters()):
        model = copy.deepcopy(model).cpu()  # the trained one stays where it is
    positional, named = _arguments(sample.features)
    batch = torch.export.Dim("batch")
    shapes: Any = {name: {0: batch} for name in named} or tuple({0: batch} for _ in positional)
    try:
        program = torch.export.export(
            model, positional, named, dynamic_shapes=shapes if sample.examples > 1 else None
        )
    except Exception as error:
        raise BadModel(
            f"{source}: torch.export can't take the model: {describe(error, source)}; use --output_format=state_dict"
        ) from error
    with made_beside(path, "model.pt2") as written:
        torch.export.save(program, written)


def on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """Return a `state_dict` that a machine without a GPU reads."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            state[name] = value.cpu()
    return state


def _arguments(features: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(features, dict):
        return (), features
    return (features if isinstance(features, tuple) else (features,)), {}
