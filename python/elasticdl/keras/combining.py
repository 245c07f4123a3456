"""The call of an embedding whose rows may be combined: the same for both libraries, because it is of TensorFlow alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.embedding import PsLayer, is_looking_up, rows_of_table

COMBINERS = ("sum", "mean", "sqrtn")


class CombinedRows:
    """What a layer does that has `output_dim`, `combiner` and `mask_zero`, and perhaps a matrix."""

    name: str
    output_dim: int
    combiner: str | None
    mask_zero: bool
    input_dim: int | None
    embeddings: Any
    compute_dtype: Any
    _has_matrix: Callable[[], bool]

    @staticmethod
    def _check_combiner(combiner: str | None) -> None:
        """Raise BadModel for another combiner than there is."""
        if combiner is not None and combiner not in COMBINERS:
            raise BadModel(f"Embedding: combiner is None, {', '.join(COMBINERS)}; received {combiner!r}")

    def build(self, input_shape: Any = None) -> None:
        """Make the matrix, unless parameter servers hold the rows. Raises BadModel if neither is possible."""
        if is_looking_up():
            self.built = True
        elif self.input_dim is not None:
            super().build(input_shape)  # type: ignore[misc]
        else:
            raise BadModel(
                f"the embedding {self.name} has ids of any range, for which rows live on parameter servers: train it with "
                "--num_ps_pods, or give it input_dim"
            )

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Return the rows of ids, or what they are combined to; `weights` of a combiner have the structure of the ids."""
        if self.combiner is not None:
            found = self._combined(inputs, weights)
        elif weights is not None or isinstance(inputs, tf.SparseTensor):
            what = "sparse ids need" if weights is None else "weights need"
            raise BadModel(
                f"the embedding {self.name} has no combiner, which {what}; give it one of {', '.join(COMBINERS)}"
            )
        elif isinstance(inputs, tf.RaggedTensor):
            found = inputs.with_flat_values(self._rows(inputs.flat_values))
        else:
            found = self._rows(inputs)
        return tf.cast(found, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of what `call` returns for ids of a shape."""
        return (*(input_shape if self.combiner is None else input_shape[:-1]), self.output_dim)

    def _rows(self, ids: Any) -> Any:
        if not ids.dtype.is_integer:
            raise BadModel(f"the embedding {self.name} takes integers as ids; received {ids.dtype.name}")
        # a cast need not keep the bits of what int64 can't express
        ids = tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)
        return (
            tf.gather(self.embeddings, ids) if self._has_matrix() else rows_of_table(cast(PsLayer, self), ids)
        )

    def _combined(self, ids: Any, weights: Any) -> Any:
        match ids:
            case tf.SparseTensor():
                outer = ids.dense_shape[:-1]
                steps = tf.math.cumprod(outer, exclusive=True, reverse=True)
                places = tf.reduce_sum(ids.indices[:, :-1] * steps, 1)
                values = (ids.values, None if weights is None else weights.values)
                return self._shaped(self._sums(*values, places, tf.reduce_prod(outer)), outer, ids.shape)
            case tf.RaggedTensor():
                flat = (ids.flat_values, None if weights is None else weights.flat_values)
                if ids.flat_values.shape.rank > 1:
                    return ids.with_flat_values(self._combined(*flat))
                *outer, inner = ids.nested_row_splits
                number = tf.size(inner, tf.int64) - 1
                places = tf.repeat(tf.range(number), inner[1:] - inner[:-1])
                return tf.RaggedTensor.from_nested_row_splits(self._sums(*flat, places, number), outer)
        outer, length = tf.split(tf.shape(ids, tf.int64), [-1, 1])
        values = (tf.reshape(ids, [-1]), None if weights is None else tf.reshape(weights, [-1]))
        places = tf.range(tf.size(ids, tf.int64)) // length
        return self._shaped(self._sums(*values, places, tf.reduce_prod(outer)), outer, ids.shape)

    def _shaped(self, sums: Any, outer: Any, shape: Any) -> Any:
        shaped = tf.reshape(sums, tf.concat([outer, [self.output_dim]], 0))
        shaped.set_shape(self.compute_output_shape(shape))
        return shaped

    def _sums(self, ids: Any, weights: Any, places: Any, number: Any) -> Any:
        """Combine the rows of ids, of shape [n], to `number` rows, each to that of its place."""
        if self.mask_zero:
            # looked up, the row of padding would be trained with gradients of zero
            kept = ids != 0
            weights = None if weights is None else tf.boolean_mask(weights, kept)
            ids, places = tf.boolean_mask(ids, kept), tf.boolean_mask(places, kept)
        rows = self._rows(ids)
        weights = tf.ones_like(places, rows.dtype) if weights is None else tf.cast(weights, rows.dtype)
        total = tf.math.unsorted_segment_sum(rows * weights[:, None], places, number)
        if self.combiner == "sum":
            return total
        squared = self.combiner == "sqrtn"
        norm = tf.math.unsorted_segment_sum(tf.square(weights) if squared else weights, places, number)
        return tf.math.divide_no_nan(total, (tf.sqrt(norm) if squared else norm)[:, None])
