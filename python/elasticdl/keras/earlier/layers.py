"""The embedding of ElasticDL 0.2, which has its arguments in another order than today's."""

from __future__ import annotations

from typing import Any

from elasticdl.keras.earlier import keras_here


def Embedding(  # a class in model files
    output_dim: int,
    input_dim: int | None = None,
    embeddings_initializer: Any = "uniform",
    mask_zero: bool = False,
    input_length: int | None = None,
    combiner: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return a layer for ids of any range, whose rows live on parameter servers if the job has them."""
    if keras_here().__name__ == "tf_keras":
        from elasticdl.keras.embeddings2 import Embedding as Layer

        return Layer(
            output_dim, input_dim, embeddings_initializer, mask_zero, input_length, combiner, **kwargs
        )
    from elasticdl.keras.layers import Embedding as Layer3

    return Layer3(output_dim, input_dim, embeddings_initializer, combiner, mask_zero, **kwargs)
