"""The adapter for Keras models on TensorFlow, and the layer for model files. Importing this package imports neither; its modules do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadModel

if TYPE_CHECKING:
    from elasticdl.keras.layers import Embedding

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    """Import the layer, and TensorFlow, when it is first used."""
    if name == "Embedding":
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
        if backend != "tensorflow":
            raise BadModel(
                f"elasticdl.keras.Embedding computes with TensorFlow, and Keras with {backend} here; use keras.layers.Embedding"
            )
        from elasticdl.keras.layers import Embedding

        return Embedding
    raise AttributeError(f"module 'elasticdl.keras' has no attribute {name!r}")
