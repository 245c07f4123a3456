"""The layer for what Keras' own Embedding can't do: tables of any 64-bit ids, and rows that are combined.

It knows nothing of servers: where its rows live is decided when it is built. A table without `input_dim` has no matrix that could hold
it, so it needs parameter servers.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from elasticdl.keras.combining import CombinedRows
from elasticdl.keras.embedding import WithoutMatrix


@keras.saving.register_keras_serializable("elasticdl")
class Embedding(CombinedRows, WithoutMatrix, keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
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
        self._check_combiner(combiner)
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
        if not self.built:
            super().build(input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return where dense ids are not 0, if 0 is padding and each id has a row."""
        if (
            self.combiner is not None
            or isinstance(inputs, tf.RaggedTensor)
            or getattr(inputs, "ragged", False)
        ):
            return None
        return super().compute_mask(inputs, mask)

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
