"""The feature column of ElasticDL 0.2: an embedding whose rows live on parameter servers if the job has them.

Without servers it is TensorFlow's own embedding column, also by name, so that a model that is saved with it loads anywhere.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2

from elasticdl.errors import BadModel
from elasticdl.keras.combining import CombinedRows
from elasticdl.keras.earlier import keras_here
from elasticdl.keras.embedding import is_looking_up


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Any:
    """Return a column for DenseFeatures; None as initializer: truncated normal with a deviation of 1/√dimension."""
    initializers = keras_here().initializers
    if initializer is None:
        initializer = initializers.TruncatedNormal(0.0, dimension**-0.5)
    return EmbeddingColumn(
        categorical_column,
        dimension,
        combiner,
        initializers.get(initializer),
        None,
        None,
        max_norm,
        trainable,
    )


class EmbeddingColumn(feature_column_v2.EmbeddingColumn):  # type: ignore[misc]  # TensorFlow has no types
    """TensorFlow's column, which makes no variable where `looking_up` has the rows."""

    def create_state(self, state_manager: Any) -> None:
        """Make the matrix, unless parameter servers hold the rows. Raises BadModel for what they don't do."""
        if not is_looking_up():
            super().create_state(state_manager)
            return
        if self.max_norm is not None:
            raise BadModel(
                f"the column {self.name} has max_norm, which rows on parameter servers can't have; leave it out"
            )
        self.__dict__["table"] = _Table(self)

    def _get_dense_tensor_internal(self, sparse_tensors: Any, state_manager: Any) -> Any:
        table = self.__dict__.get("table")
        if table is None:
            return super()._get_dense_tensor_internal(sparse_tensors, state_manager)
        ids, weights = sparse_tensors.id_tensor, sparse_tensors.weight_tensor
        kept = ids.values >= 0  # words that a vocabulary does not have are -1
        if weights is not None:
            kept &= weights.values > 0
            weights = tf.sparse.retain(weights, kept)
        return table.call(tf.sparse.retain(ids, kept), weights)


class _Table(CombinedRows):
    """The rows of a column, as a layer whose rows are looked up."""

    mask_zero = False
    compute_dtype = "float32"

    def __init__(self, column: Any) -> None:
        self.name = self.path = column.name
        self.output_dim, self.combiner = column.dimension, column.combiner
        self.input_dim: int | None = column.categorical_column.num_buckets
        self.embeddings_initializer, self.trainable = column.initializer, column.trainable

    def _has_matrix(self) -> bool:
        return False

    @property
    def plain(self) -> type:
        """Raise BadModel: a column is no layer that a `.keras` file could have."""
        raise BadModel(
            f"the column {self.name} has its rows on parameter servers, and a .keras file can't hold them; write "
            "--output_format=saved_model"
        )
