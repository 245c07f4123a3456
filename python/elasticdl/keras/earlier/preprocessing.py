"""The layers of `elasticdl_preprocessing`: those that Keras has, with their arguments of then, and those of `elasticdl.preprocessing`.

They are layers of Keras 3. A model of Keras 2 has feature columns, and the preprocessing layers of tf_keras.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from elasticdl.keras.earlier import keras_here


def __getattr__(name: str) -> Any:
    """Return a layer. Raises ImportError in a job of Keras 2."""
    if name.startswith("__"):
        raise AttributeError(name)
    keras = keras_here()
    if keras.__name__ == "tf_keras":
        raise ImportError(
            f"elasticdl_preprocessing.layers.{name} is a layer of Keras 3, and the job is one of Keras 2; use feature columns or the "
            "layers of tf_keras, or leave --framework=tf_keras out"
        )
    if name == "Hashing":
        return keras.layers.Hashing
    own = {"Discretization": _discretization, "Normalizer": _normalizer, "Embedding": _embedding}
    own["SparseEmbedding"] = _embedding
    # by its name: the room of these layers is above this one
    return own.get(name) or getattr(importlib.import_module("elasticdl.preprocessing.layers"), name)


def _discretization(bins: Sequence[float], **layer: Any) -> Any:
    """Return the layer that numbers buckets; a bound belongs to the one on its right."""
    return keras_here().layers.Discretization(bin_boundaries=list(bins), **layer)


def _normalizer(subtractor: float, divisor: float, **layer: Any) -> Any:
    """Return the layer of (x − subtractor) / divisor. Raises ValueError for a divisor of 0."""
    if not divisor:
        raise ValueError("Normalizer: the divisor is 0")
    return keras_here().layers.Rescaling(1.0 / divisor, -subtractor / divisor, **layer)


def _embedding(
    input_dim: int,
    output_dim: int,
    embeddings_initializer: Any = "uniform",
    combiner: str = "mean",
    **layer: Any,
) -> Any:
    """Return the layer that combines the rows of ids."""
    from elasticdl.keras.layers import Embedding

    return Embedding(output_dim, input_dim, embeddings_initializer, combiner, **layer)
