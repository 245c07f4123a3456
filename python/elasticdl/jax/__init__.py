"""JAX as a framework: what model files import. Importing this package does not import JAX."""

from __future__ import annotations

from elasticdl.worker.hooks import Callback

__all__ = ["Callback"]
