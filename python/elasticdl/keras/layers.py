"""The layer for what Keras' own Embedding can't do: tables of any 64-bit ids, and rows that are combined.

It knows nothing of servers: where its rows live is decided when it is built. A table without `input_dim` has no matrix that could hold
it, so it needs parameter servers.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.embedding import WithoutMatrix, is_looking_up, rows_of_table

COMBINERS = ("sum", "mean", "sqrtn")


@keras.saving.register_keras_serializable("elasticdl")
class Embedding(WithoutMatrix, keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """Keras' Embedding, for ids of any range, whose rows may be combined over the last dimension of the ids.

    Ids are integers of any type and shape: dense, `tf.SparseTensor` or `tf.RaggedTensor`; negative ones, and the upper half of uint64,
    are ids like any other. Rows live on parameter servers if the job has them, whatever `--embedding_threshold` says; without, the
    layer has the matrix of Keras' Embedding, for which it needs `input_dim`.
    """

    built: bool

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        embeddings_initializer: Any = "uniform",
        combiner: str | None = None,
        mask_zero: bool = False,
        *,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        """Check the arguments; `name`, `dtype` and `trainable` are those of every Keras layer.

        Args:
            output_dim: weights of a row.
            input_dim: ids are 0 up to this; None: any 64 bits.
            embeddings_initializer: of rows that have not been trained.
            combiner: `sum`, `mean` (divided by the sum of the weights) or `sqrtn` (by the root of the sum of their squares), as
                `tf.nn.embedding_lookup_sparse` defines them; nothing to combine gives zeros. None: a row of each id.
            mask_zero: the id 0 is padding: masked, or left out of what is combined.

        Raises BadModel for another combiner.
        """
        if combiner is not None and combiner not in COMBINERS:
            raise BadModel(f"Embedding: combiner is None, {', '.join(COMBINERS)}; received {combiner!r}")
        super().__init__(
            1 if input_dim is None else input_dim,
            output_dim,
            embeddings_initializer,
            mask_zero=mask_zero,
            name=name,
            dtype=dtype,
            trainable=trainable,
        )
        self.input_dim = input_dim
        self.combiner = combiner
        self.supports_jit = combiner is None

    @property
    def plain(self) -> type:
        """Return the class that a model without parameter servers has for it: Keras' own where that does the same."""
        return keras.layers.Embedding if self.combiner is None else type(self)

    def build(self, input_shape: Any = None) -> None:
        """Make the matrix, unless parameter servers hold the rows. Raises BadModel if neither is possible."""
        if self.built:
            return
        if is_looking_up():
            self.built = True
        elif self.input_dim is not None:
            super().build(input_shape)
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

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where dense ids are not 0, if 0 is padding and each id has a row."""
        if (
            self.combiner is not None
            or isinstance(inputs, tf.RaggedTensor)
            or getattr(inputs, "ragged", False)
        ):
            return None
        return super().compute_mask(inputs, mask)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of what `call` returns for ids of a shape."""
        return (*(input_shape if self.combiner is None else input_shape[:-1]), self.output_dim)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """Return the symbol of what `call` returns."""
        shape = self.compute_output_shape(inputs.shape)
        # combining takes the last ragged dimension away
        ragged = inputs.ragged and (self.combiner is None or len(inputs.shape) > 2)
        return keras.KerasTensor(shape, self.compute_dtype, ragged=ragged)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {
            **keras.layers.Layer.get_config(self),
            "output_dim": self.output_dim,
            "input_dim": self.input_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Return the layer of what `get_config` returned."""
        return cls(**config)  # Keras' Embedding would add an argument

    def _rows(self, ids: Any) -> Any:
        if not ids.dtype.is_integer:
            raise BadModel(f"the embedding {self.name} takes integers as ids; received {ids.dtype.name}")
        # a cast need not keep the bits of what int64 can't express
        ids = tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)
        # there is a matrix if this was built where no servers are
        whole = hasattr(self, "_embeddings")
        return tf.gather(self.embeddings, ids) if whole else rows_of_table(self, ids)

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
