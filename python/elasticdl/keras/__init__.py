"""The adapter for Keras models on TensorFlow, and the layer for model files. Importing this package imports neither; its modules do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.keras.layers import Embedding

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    """Import the layer, and TensorFlow, when it is first used."""
    if name == "Embedding":
        from elasticdl.keras.layers import Embedding

        return Embedding
    raise AttributeError(f"module 'elasticdl.keras' has no attribute {name!r}")
