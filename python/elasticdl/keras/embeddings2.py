"""Embeddings of Keras 2 whose rows live on parameter servers; what they have in common with those of Keras 3 is in `embedding.py`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from elasticdl.keras.combining import CombinedRows
from elasticdl.keras.embedding import WithoutMatrix, rows_of_table


class PsEmbedding(WithoutMatrix, tf_keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """An embedding of Keras 2 without a variable: its rows are looked up where `looking_up` says."""

    plain = tf_keras.layers.Embedding

    @property
    def path(self) -> str:
        """Return the name of its table."""
        return self.name

    def call(self, inputs: Any) -> Any:
        """Return the rows of integers of any shape."""
        return tf.cast(rows_of_table(self, tf.cast(inputs, tf.int64)), self.compute_dtype)


class Embedding(CombinedRows, WithoutMatrix, tf_keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """`elasticdl.keras.Embedding` for Keras 2, with the arguments of ElasticDL 0.2; ids of any number type are cast to int64."""

    plain = tf_keras.layers.Embedding

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        input_length: int | None = None,
        combiner: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Raises BadModel for another combiner."""
        self._check_combiner(combiner)
        super().__init__(
            1 if input_dim is None else input_dim,
            output_dim,
            embeddings_initializer,
            mask_zero=mask_zero,
            input_length=input_length,
            **kwargs,
        )
        self.input_dim = input_dim
        self.combiner = combiner

    @property
    def path(self) -> str:
        """Return the name of its table."""
        return self.name

    def _has_matrix(self) -> bool:
        return hasattr(self, "embeddings")

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Return the rows of ids, or what they are combined to."""
        return super().call(tf.cast(inputs, tf.int64), weights)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**super().get_config(), "input_dim": self.input_dim, "combiner": self.combiner}
