"""PyTorch as a framework: what model files import."""

from __future__ import annotations

from elasticdl.worker.hooks import Callback

__all__ = ["Callback"]
