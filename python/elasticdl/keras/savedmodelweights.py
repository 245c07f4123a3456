"""Reading the weights of a SavedModel directory that a job has written into a model, by the names that TensorFlow's checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from elasticdl.errors import BadModel
from elasticdl.keras.internals import layers_of
from elasticdl.keras.library import library_of
from elasticdl.keras.weightsfile import REMEDY
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Where TensorFlow's checkpoints have what each variable belongs to, as a `TrackableObjectGraph`."""


class _Written(NamedTuple):
    """A variable of a SavedModel: what its maker called it, the key of its value, and its shape."""

    name: str
    key: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}"


def load_weights(user: UserModel, model: Any, path: Path) -> None:
    """Give a model that is built the weights of a directory. Raises BadModel if it is damaged, or of another model."""
    try:
        reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_OBJECTS))
        shapes = reader.get_variable_to_shape_map()
        listed, others = _variables(graph, shapes)
        for variable, written in _paired(user, model, path, listed, others):
            variable.assign(reader.get_tensor(written.key))
    except (tf.errors.OpError, RuntimeError, ValueError, KeyError, IndexError, DecodeError) as error:
        raise BadModel(
            f"--trained_model: {path} is no SavedModel of a job, or is damaged ({describe(error, user.path)}); name the directory that "
            "`elasticdl train --output_format=saved_model` wrote"
        ) from None


def _variables(graph: Any, shapes: dict[str, Any]) -> tuple[list[_Written], list[_Written]]:
    """Return the variables that Keras lists of a model, in its order, and the others: tables that were on parameter servers."""

    def children(node: Any) -> dict[str, int]:
        return {child.local_name: child.node_id for child in node.children}

    def written(node: Any) -> _Written:
        (value,) = node.attributes
        return _Written(value.full_name, value.checkpoint_key, tuple(shapes[value.checkpoint_key]))

    numbers = children(graph.nodes[children(graph.nodes[0])["variables"]])
    places = [numbers[name] for name in sorted(numbers, key=int)]
    others = [
        place for place, node in enumerate(graph.nodes) if len(node.attributes) == 1 and place not in places
    ]
    return [written(graph.nodes[place]) for place in places], [
        written(graph.nodes[place]) for place in others
    ]


def _paired(
    user: UserModel, model: Any, path: Path, listed: list[_Written], others: list[_Written]
) -> Iterator[tuple[Any, _Written]]:
    """Yield each variable of the model with its value. Raises BadModel for the first that differs."""
    tables = {written.name: written for written in others}
    paired: dict[int, _Written] = {}
    library = library_of(model)
    for layer in layers_of(model):
        if isinstance(layer, library.package.layers.Embedding) and layer.name in tables:
            matrix, written = library.variables(layer)[0], tables[layer.name]
            if tuple(matrix.shape) == written.shape:
                paired[id(matrix)] = written
    own = library.variables(model)
    rest = [variable for variable in own if id(variable) not in paired]
    for variable, written in zip_longest(rest, listed):
        if variable is None or written is None or tuple(variable.shape) != written.shape:
            mine = "no further variable" if variable is None else f"{variable.path} {list(variable.shape)}"
            raise BadModel(
                f"--trained_model: {path} is of another model: it has {written or 'no further variable'}, and the model of {user.path} "
                f"{mine}; {REMEDY}"
            )
        paired[id(variable)] = written
    yield from ((variable, paired[id(variable)]) for variable in own)
