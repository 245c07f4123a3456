"""PyTorch as a framework: what model files import, and what custom training loops do. Importing this package does not import PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elasticdl.worker.hooks import Callback

if TYPE_CHECKING:
    from elasticdl.torch.adoption import elastic
    from elasticdl.torch.embedding import Embedding
    from elasticdl.torch.loader import DataLoader
    from elasticdl.torch.loop import Job, init

__all__ = ["Callback", "DataLoader", "Embedding", "Job", "elastic", "init"]

_PLACES = {
    "DataLoader": "loader",
    "Embedding": "embedding",
    "Job": "loop",
    "elastic": "adoption",
    "init": "loop",
}


def __getattr__(name: str) -> Any:
    """Import what loops and models use, and PyTorch, when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'elasticdl.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"elasticdl.torch.{_PLACES[name]}"), name)
