"""The feature column of `elasticdl_preprocessing`: several categorical columns as one, whose ids lie behind each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2, serialization


def concatenated_categorical_column(categorical_columns: Sequence[Any]) -> Any:
    """Return a column with the ids of several, those of each moved by the sizes of the ones before. Raises ValueError for other columns."""
    columns = categorical_columns if isinstance(categorical_columns, list | tuple) else ()
    if not columns or not all(isinstance(one, feature_column_v2.CategoricalColumn) for one in columns):
        raise ValueError(f"expected a list of categorical columns, received {categorical_columns!r}")
    return ConcatenatedCategoricalColumn(tuple(columns))


class ConcatenatedCategoricalColumn(feature_column_v2.CategoricalColumn):  # type: ignore[misc]  # TensorFlow has no types
    """What `concatenated_categorical_column` returns."""

    def __init__(self, categorical_columns: Sequence[Any]) -> None:
        self.categorical_columns = tuple(categorical_columns)

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """Return the names of the columns, sorted."""
        return "_C_".join(sorted(one.name for one in self.categorical_columns))

    @property
    def num_buckets(self) -> int:
        """Return how many ids there are."""
        return sum(one.num_buckets for one in self.categorical_columns)

    @property
    def parents(self) -> list[Any]:
        """Return the columns."""
        return list(self.categorical_columns)

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """Return how all of them are read from examples."""
        return {
            name: kind for one in self.categorical_columns for name, kind in one.parse_example_spec.items()
        }

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Return the ids of each row side by side. Raises ValueError for weighted columns."""
        ends = accumulate(one.num_buckets for one in self.categorical_columns)
        moved = []
        for column, end in zip(self.categorical_columns, ends, strict=True):
            pair = column.get_sparse_tensors(transformation_cache, state_manager)
            if pair.weight_tensor is not None:
                raise ValueError(
                    f"the column {column.name} has weights, which concatenated columns can't have"
                )
            ids, start = pair.id_tensor, end - column.num_buckets
            values = tf.cast(ids.values, tf.int64)
            # a word that a vocabulary does not have is -1, and stays so
            moved.append(
                tf.SparseTensor(ids.indices, tf.where(values < 0, values, values + start), ids.dense_shape)
            )
        return tf.sparse.concat(1, moved)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Return the ids, without weights."""
        ids = transformation_cache.get(self, state_manager)
        return feature_column_v2.CategoricalColumn.IdWeightPair(ids, None)

    def get_config(self) -> dict[str, Any]:
        """Return what makes the same column again."""
        columns = [serialization.serialize_feature_column(one) for one in self.categorical_columns]
        return {"categorical_columns": columns}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> ConcatenatedCategoricalColumn:
        """Return the column of a configuration."""
        return cls(
            [
                serialization.deserialize_feature_column(one, custom_objects, columns_by_name)
                for one in config["categorical_columns"]
            ]
        )
