"""Preprocessing layers that Keras does not have: for dense, sparse and ragged tensors, in functional models and out of them, serialisable.

Keras' `Hashing`, `Discretization` and `Normalization` give the ids and numbers that the earlier generation's layers of those names gave;
`elasticdl.keras.Embedding` with a combiner takes sparse and ragged ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

_PACKAGE = "elasticdl"


class _ByValue(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """A layer that makes a value of each value: the result is dense, sparse or ragged as the input is."""

    out_type = "int64"

    def __init__(self, **layer: Any) -> None:
        """`layer`: Keras' arguments of every layer."""
        super().__init__(autocast=False, **layer)
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        """Return what is made of each value."""
        return _mapped(self._made, inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the symbol of what `call` returns."""
        return keras.KerasTensor(inputs.shape, self.out_type, sparse=inputs.sparse, ragged=inputs.ragged)

    def _made(self, values: Any) -> Any:
        raise NotImplementedError


def _mapped(function: Callable[[Any], Any], tensor: Any) -> Any:
    match tensor:
        case tf.SparseTensor():
            return tensor.with_values(function(tensor.values))
        case tf.RaggedTensor():
            return tensor.with_flat_values(function(tensor.flat_values))
    return function(tf.convert_to_tensor(tensor))


@keras.saving.register_keras_serializable(package=_PACKAGE)
class IndexLookup(_ByValue):
    """The place of a text in a vocabulary; an unknown one is behind it, at the vocabulary's size + hash mod `num_oov_tokens`.

    Keras' `StringLookup` has the unknown ones in front.
    """

    def __init__(self, vocabulary: Sequence[str] | str | Path, num_oov_tokens: int = 1, **layer: Any) -> None:
        """`vocabulary`: texts, or a file with one a line. Raises ValueError for one that is there twice, or no room for unknown ones."""
        super().__init__(**layer)
        if isinstance(vocabulary, str | Path):
            vocabulary = Path(vocabulary).read_text().splitlines()
        if len(set(vocabulary)) < len(vocabulary):
            twice = next(one for one in vocabulary if list(vocabulary).count(one) > 1)
            raise ValueError(f"the vocabulary has {twice!r} twice")
        if num_oov_tokens < 1:
            raise ValueError(f"num_oov_tokens is 1 or more; got {num_oov_tokens}")
        self.vocabulary = [str(one) for one in vocabulary]
        self.num_oov_tokens = num_oov_tokens
        self._lookup = keras.layers.StringLookup(
            vocabulary=self.vocabulary, num_oov_indices=num_oov_tokens, mask_token=None
        )

    def vocab_size(self) -> int:
        """Return how many ids there are."""
        return len(self.vocabulary) + self.num_oov_tokens

    def _made(self, values: Any) -> Any:
        found = tf.cast(self._lookup(values), tf.int64)
        unknown = self.num_oov_tokens
        return tf.where(found < unknown, found + len(self.vocabulary), found - unknown)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "vocabulary": self.vocabulary, "num_oov_tokens": self.num_oov_tokens}


@keras.saving.register_keras_serializable(package=_PACKAGE)
class ToNumber(_ByValue):
    """Text as numbers, an empty one as `default_value`; numbers are cast."""

    def __init__(self, out_type: Any, default_value: float, **layer: Any) -> None:
        """`out_type`: a number's, of TensorFlow or by name. Raises ValueError for another one."""
        super().__init__(**layer)
        kind = tf.as_dtype(out_type)
        if not (kind.is_floating or kind.is_integer):
            raise ValueError(f"out_type is a type of numbers; got {kind.name}")
        self.out_type, self.default_value = kind.name, default_value

    def _made(self, values: Any) -> Any:
        kind = tf.as_dtype(self.out_type)
        if values.dtype != tf.string:
            return tf.cast(values, kind)
        given = tf.where(values == "", str(self.default_value), values)
        parsed = kind if kind in (tf.float32, tf.float64, tf.int32, tf.int64) else tf.float64
        return tf.cast(tf.strings.to_number(given, parsed), kind)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "out_type": self.out_type, "default_value": self.default_value}


@keras.saving.register_keras_serializable(package=_PACKAGE)
class LogRound(_ByValue):
    """The logarithm, rounded half to even, as an id from 0 to `num_bins` - 1; outside of that, and of x ≤ 0, `default_value`."""

    def __init__(
        self, num_bins: int, default_value: int = 0, base: float | None = None, **layer: Any
    ) -> None:
        """`base`: of the logarithm, the natural one unless given."""
        super().__init__(**layer)
        self.num_bins, self.default_value, self.base = num_bins, default_value, base

    def _made(self, values: Any) -> Any:
        numbers = tf.cast(values, tf.float64)
        logs = tf.math.log(numbers) / (1.0 if self.base is None else math.log(self.base))
        # 2³ of base 2 is 2.9999…: what is that near to a half is one
        return _rounded(tf.round(logs * 2**40) / 2**40, self.num_bins, self.default_value)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {
            **_config(self),
            "num_bins": self.num_bins,
            "default_value": self.default_value,
            "base": self.base,
        }


@keras.saving.register_keras_serializable(package=_PACKAGE)
class RoundIdentity(_ByValue):
    """The number, rounded half to even, as an id from 0 to `num_buckets` - 1; outside of that `default_value`."""

    def __init__(self, num_buckets: int, default_value: int = 0, **layer: Any) -> None:
        super().__init__(**layer)
        self.num_buckets, self.default_value = num_buckets, default_value

    def _made(self, values: Any) -> Any:
        return _rounded(tf.cast(values, tf.float64), self.num_buckets, self.default_value)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "num_buckets": self.num_buckets, "default_value": self.default_value}


def _rounded(numbers: Any, count: int, default: int) -> Any:
    rounded = tf.round(numbers)
    inside = (rounded >= 0) & (rounded < count)  # not of what is no number
    return tf.where(inside, tf.cast(tf.where(inside, rounded, 0), tf.int64), tf.constant(default, tf.int64))


# ------------------------------------------------------------------ forms


def _ignored(dtype: Any, given: Any) -> Any:
    """Return the value that is left out: an empty text, -1 or 0.0 unless one is given."""
    if given is not None:
        return given
    kind = tf.as_dtype(dtype)
    return "" if kind == tf.string else 0.0 if kind.is_floating else -1


@keras.saving.register_keras_serializable(package=_PACKAGE)
class ToSparse(keras.layers.Layer):  # type: ignore[misc]
    """A dense or ragged tensor as a sparse one, without the value that stands for none; a sparse one stays as it is."""

    def __init__(self, ignore_value: Any = None, **layer: Any) -> None:
        """`ignore_value`: "", -1 or 0.0 by the type unless given."""
        super().__init__(autocast=False, **layer)
        self.ignore_value = ignore_value
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        """Return a sparse tensor."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        ignored = _ignored(inputs.dtype, self.ignore_value)
        if isinstance(inputs, tf.RaggedTensor):
            return tf.sparse.retain(inputs.to_sparse(), inputs.flat_values != ignored)
        inputs = tf.convert_to_tensor(inputs)
        places = tf.where(
            inputs != tf.cast(ignored, inputs.dtype) if inputs.dtype != tf.string else inputs != ignored
        )
        return tf.SparseTensor(places, tf.gather_nd(inputs, places), tf.shape(inputs, tf.int64))

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the symbol of what `call` returns."""
        return keras.KerasTensor(inputs.shape, inputs.dtype, sparse=True)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "ignore_value": self.ignore_value}


@keras.saving.register_keras_serializable(package=_PACKAGE)
class ToRagged(keras.layers.Layer):  # type: ignore[misc]
    """Rows of several values as a ragged tensor, without the value that stands for none; text is split."""

    def __init__(self, sep: str = ",", ignore_value: Any = None, **layer: Any) -> None:
        """`sep`: between the values of a text. `ignore_value`: "", -1 or 0.0 by the type unless given."""
        super().__init__(autocast=False, **layer)
        self.sep, self.ignore_value = sep, ignore_value
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        """Return a ragged tensor with one row for each."""
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.RaggedTensor.from_sparse(inputs)
        elif not isinstance(inputs, tf.RaggedTensor):
            inputs = tf.convert_to_tensor(inputs)
            if inputs.shape.rank == 1:
                inputs = tf.expand_dims(inputs, 1)
            inputs = tf.RaggedTensor.from_tensor(inputs)
        if inputs.dtype == tf.string:
            # of a row's texts the values one after the other
            inputs = tf.strings.split(inputs, self.sep).merge_dims(1, 2)
        ignored = _ignored(inputs.dtype, self.ignore_value)
        return tf.ragged.boolean_mask(inputs, inputs != ignored)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the symbol of what `call` returns."""
        return keras.KerasTensor((inputs.shape[0], None), inputs.dtype, ragged=True)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "sep": self.sep, "ignore_value": self.ignore_value}


@keras.saving.register_keras_serializable(package=_PACKAGE)
class ConcatenateWithOffset(keras.layers.Layer):  # type: ignore[misc]
    """Ids of several columns side by side, each column's moved by its offset, so that one embedding takes them all."""

    def __init__(self, offsets: Sequence[int] | None, axis: int = -1, **layer: Any) -> None:
        """`offsets`: of each input; None: nothing is moved."""
        super().__init__(autocast=False, **layer)
        self.offsets = None if offsets is None else [int(one) for one in offsets]
        self.axis = axis
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        """Return the concatenation; a single tensor is returned as it is. Raises ValueError for another number of inputs than offsets."""
        if not isinstance(inputs, list | tuple):
            return inputs
        if self.offsets is not None:
            self._check(inputs)
            inputs = [_mapped(_mover(offset), one) for one, offset in zip(inputs, self.offsets, strict=True)]
        if all(isinstance(one, tf.SparseTensor) for one in inputs):
            return tf.sparse.concat(self.axis, inputs)
        return tf.concat(inputs, self.axis)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the symbol of what `call` returns."""
        if not isinstance(inputs, list | tuple):
            return inputs
        self._check(inputs)
        first = inputs[0]
        shape = list(first.shape)
        lengths = [one.shape[self.axis] for one in inputs]
        shape[self.axis] = None if None in lengths else sum(lengths)
        return keras.KerasTensor(tuple(shape), first.dtype, sparse=first.sparse, ragged=first.ragged)

    def _check(self, inputs: Sequence[Any]) -> None:
        if self.offsets is not None and len(inputs) != len(self.offsets):
            raise ValueError(
                f"there are {len(self.offsets)} offsets for {len(inputs)} inputs; each needs one"
            )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of an equal layer."""
        return {**_config(self), "offsets": self.offsets, "axis": self.axis}


def _mover(offset: int) -> Callable[[Any], Any]:
    def moved(ids: Any) -> Any:
        return ids + tf.cast(offset, ids.dtype)

    return moved


def _config(layer: Any) -> dict[str, Any]:
    config: dict[str, Any] = keras.layers.Layer.get_config(layer)
    return config
