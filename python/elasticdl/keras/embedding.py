"""Keras embeddings whose rows live on parameter servers.

A model is not edited: while it is built, embeddings above a threshold get no variable. What such a layer looks up has to be known before
the step, so that rows can be fetched ahead; the model is traced once more for that, with zeros in place of all rows, and what is not
needed for the ids falls out of that graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.catalog.catalog import Initial, InitialKind, Table
from elasticdl.errors import BadData, BadModel
from elasticdl.keras.library import Library, library_of

_FLOAT = 4


class PsLayer(Protocol):
    """An embedding whose rows are looked up.

    Attributes:
        input_dim: ids are 0 up to this; None: any 64 bits.
    """

    name: str
    path: str
    trainable: bool
    input_dim: int | None
    output_dim: int
    embeddings_initializer: Any

    @property
    def plain(self) -> type:
        """Return the class of the layer that it becomes when its rows are put back."""


class Lookups(Protocol):
    """What the server-side layers of a model do while it is called."""

    def look_up(self, layer: PsLayer, ids: Any) -> Any:
        """Return the rows of ids, of the shape of the ids and one dimension more."""


_lookups: ContextVar[Lookups] = ContextVar("lookups")


@contextmanager
def looking_up(lookups: Lookups) -> Iterator[None]:
    """Let the server-side layers of the models that are called meanwhile look up their rows there."""
    token = _lookups.set(lookups)
    try:
        yield
    finally:
        _lookups.reset(token)


def is_looking_up() -> bool:
    """Return whether layers are built and called for parameter servers here."""
    return _lookups.get(None) is not None


def rows_of_table(layer: PsLayer, ids: Any) -> Any:
    """Return the rows of int64 ids of any shape from where `looking_up` says."""
    return _lookups.get().look_up(layer, ids)


def check_range(path: Path, layer: PsLayer, ids: npt.NDArray[np.int64]) -> None:
    """Look whether a layer has all these ids; `path`: of the model file. Raises BadData."""
    if not len(ids) or layer.input_dim is None:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= layer.input_dim:
        wrong = low if low < 0 else high
        raise BadData(
            f"{path}: the embedding {layer.name} has the ids 0 to {layer.input_dim - 1}, received {wrong}"
        )


WHOLE_TABLE = (
    "a variable like any other: a Keras embedding, with an --embedding_threshold that is not below its size"
)
"""What can have all that rows on servers can't, for messages."""


class WithoutMatrix:
    """What a layer refuses whose rows are on servers, with a sentence of its own: Keras would speak of variables that are not there."""

    name: str

    def _has_matrix(self) -> bool:
        return hasattr(self, "_embeddings")

    def _refuse_without_matrix(self, what: str) -> None:
        if not self._has_matrix():
            raise _can_not(self, what)

    def set_weights(self, weights: Any) -> None:
        """Set the matrix. Raises BadModel if rows on servers are in its place."""
        self._refuse_without_matrix("weights that are given to it")
        super().set_weights(weights)  # type: ignore[misc]

    def load_own_variables(self, store: Any) -> None:
        """Load the matrix. Raises BadModel if rows on servers are in its place."""
        self._refuse_without_matrix("weights from a file")
        super().load_own_variables(store)  # type: ignore[misc]

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """Adapt the matrix by one of low rank. Raises BadModel if rows on servers are in its place."""
        self._refuse_without_matrix("lora_rank")
        super().enable_lora(*args, **kwargs)  # type: ignore[misc]


class PsEmbedding(WithoutMatrix, keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """A Keras embedding without a variable: its rows are looked up where `looking_up` says."""

    plain = keras.layers.Embedding

    def call(self, inputs: Any) -> Any:
        """Return the rows of integers of any shape."""
        return tf.cast(rows_of_table(self, tf.cast(inputs, tf.int64)), self.compute_dtype)


class Recorded:
    """Takes note of what is looked up, and answers zeros."""

    def __init__(self) -> None:
        self.layers: list[PsLayer] = []
        self.ids: list[Any] = []

    def look_up(self, layer: PsLayer, ids: Any) -> Any:
        """Remember a layer and its ids, flat."""
        self.layers.append(layer)
        self.ids.append(tf.reshape(ids, [-1]))
        return tf.zeros(tf.concat([tf.shape(ids), [layer.output_dim]], 0))


class Given:
    """Answers from rows that are there, in the order in which they were looked up when that was recorded."""

    def __init__(self, lookups: list[tuple[Any, Any]]) -> None:
        """`lookups`: of each lookup the table's rows, and the places of its ids among them."""
        self._lookups = iter(lookups)

    def look_up(self, layer: PsLayer, ids: Any) -> Any:
        """Return the rows of the next lookup."""
        rows, places = next(self._lookups)
        found = tf.gather(rows, places)
        shape = tf.concat([tf.shape(ids), [layer.output_dim]], 0)
        shaped = tf.reshape(found, shape)
        shaped.set_shape([*ids.shape, layer.output_dim])
        return shaped


@contextmanager
def server_side(threshold: int, library: Library) -> Iterator[None]:
    """Let the Keras embeddings of more than `threshold` bytes that are built meanwhile get no variable.

    Raises BadModel, out of their `build`, for what parameter servers don't do.
    """
    kind, ps_kind = library.package.layers.Embedding, library.ps_embedding()
    build, call = kind.build, kind.call

    def build_or_serve(layer: Any, input_shape: Any = None) -> None:
        size = layer.input_dim * layer.output_dim * _FLOAT
        if layer.built or type(layer) is not kind or size <= threshold:
            build(layer, input_shape)
            return
        _check(layer)
        object.__setattr__(layer, "__class__", ps_kind)
        layer.built = True

    def call_as_it_is_now(layer: Any, inputs: Any) -> Any:
        # Keras 2 looks for `call` before it builds
        return layer.call(inputs) if isinstance(layer, ps_kind) else call(layer, inputs)

    kind.build, kind.call = build_or_serve, call_as_it_is_now
    try:
        yield
    finally:
        kind.build, kind.call = build, call


def _check(layer: Any) -> None:
    refused = {
        "embeddings_regularizer": layer.embeddings_regularizer,
        "embeddings_constraint": layer.embeddings_constraint,
        # Keras 2 has none of these
        "lora_rank": getattr(layer, "lora_rank", None),
        "quantization": getattr(layer, "quantization_mode", None)
        or getattr(layer, "quantization_config", None),
        f"weights of type {layer.variable_dtype}": layer.variable_dtype != "float32",
    }
    for what, value in refused.items():
        if value:
            raise _can_not(layer, what)


def _can_not(layer: Any, what: str) -> BadModel:
    return BadModel(
        f"the embedding {layer.name} has {what}, which rows on parameter servers can't have; leave it out, or let the table be "
        f"{WHOLE_TABLE}"
    )


def names_of(layers: Iterable[PsLayer]) -> list[str]:
    """Return names of tables, with numbers where they come again: two towers may call theirs the same, and initial weights go by name."""
    found: list[str] = []
    for name in (layer.path for layer in layers):
        others = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(one for one in others if one not in found))
    return found


def table_of(layer: PsLayer, name: str, admission: int, decays: bool) -> Table:
    """Describe a layer's table; `decays`: the optimizer's weight decay is for it.

    Raises BadModel for initial weights that are not drawn for each by itself.
    """
    return Table(name, layer.output_dim, _initial(layer), admission, decays)


def _initial(layer: PsLayer) -> Initial:
    initializer = layer.embeddings_initializer
    kinds = library_of(initializer).package.initializers
    match initializer:
        case kinds.Zeros():
            return Initial(InitialKind.CONSTANT, 0.0)
        case kinds.Ones():
            return Initial(InitialKind.CONSTANT, 1.0)
        case kinds.Constant():
            return Initial(InitialKind.CONSTANT, float(initializer.value))
        case kinds.RandomUniform():
            return Initial(InitialKind.UNIFORM, float(initializer.minval), float(initializer.maxval))
        case kinds.RandomNormal():
            return Initial(InitialKind.NORMAL, float(initializer.mean), float(initializer.stddev))
        case kinds.TruncatedNormal():
            return Initial(InitialKind.TRUNCATED_NORMAL, float(initializer.mean), float(initializer.stddev))
        case kinds.VarianceScaling():
            return _scaled(initializer, layer)
    raise BadModel(
        f"the embedding {layer.name} is initialised by {type(initializer).__name__}, which parameter servers don't know; "
        "they know zeros, ones, constants, uniform, normal and truncated normal weights, and what Keras scales by the table's sizes"
    )


def _scaled(initializer: Any, layer: PsLayer) -> Initial:
    """Return what `keras.initializers.VarianceScaling` draws for a matrix of the table's sizes (its documentation has the formulas)."""
    rows, width = layer.input_dim, layer.output_dim
    if rows is None:
        raise BadModel(
            f"the embedding {layer.name} has ids of any range, and its initial weights depend on how many there are; give it input_dim, or "
            "an initializer that scales nothing, such as uniform"
        )
    fan = {"fan_in": rows, "fan_out": width, "fan_avg": (rows + width) / 2}[initializer.mode]
    scale = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return Initial(InitialKind.UNIFORM, -limit, limit)
    if initializer.distribution == "truncated_normal":
        # cut off at two deviations, a normal variable keeps this share of its own
        return Initial(InitialKind.TRUNCATED_NORMAL, 0.0, math.sqrt(scale) / 0.87962566103423978)
    return Initial(InitialKind.NORMAL, 0.0, math.sqrt(scale))
