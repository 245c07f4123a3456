"""Writing a model whose tables come in blocks of rows, so that no table is ever in memory as a whole.

Keras and TensorFlow write the model with something small in place of each table, and what they have written is completed on the disk:
a `.keras` file's HDF5 file gets the matrix as a dataset, a SavedModel's variables are written again in slices. Both are what Keras and
TensorFlow read anyway. On the way a `.keras` file takes twice its size beside its target.
"""

from __future__ import annotations

import re
import secrets
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.embedding import PsLayer, looking_up
from elasticdl.keras.library import KERAS, library_of
from elasticdl.keras.shown import inputs_of

Floats = npt.NDArray[np.float32]
Blocks = Iterator[Floats]

_WEIGHTS = "model.weights.h5"
"""Where a `.keras` file has its variables (the archive is described at `keras.saving.save_model`)."""
_SIGNED = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SLICE = 32 << 20
"""Bytes of a slice in a SavedModel; each is a file."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows of a layer that is looked up.

    Attributes:
        layer: it has an `input_dim`.
        blocks: float32, each of shape [n, output_dim], together of all ids from 0 on.
    """

    layer: PsLayer
    blocks: Blocks

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the whole."""
        assert self.layer.input_dim is not None, "others are not written as matrices"
        return self.layer.input_dim, self.layer.output_dim


def write_keras(model: Any, path: Path, matrices: Sequence[Matrix]) -> None:
    """Write a `.keras` file in which the layers are plain ones with these weights; with any the model is of no use afterwards.

    Drafts are left beside it. Raises BadModel for a layer that Keras does not save.
    """
    if not matrices:
        model.save(path)
        return
    room = path.with_suffix(".parts")
    token = secrets.randbits(64)
    for number, matrix in enumerate(matrices):
        _mark(matrix.layer, np.array([token, number], np.uint64))
    draft = path.with_suffix(".draft.keras")
    model.save(draft)
    with zipfile.ZipFile(draft) as archive:
        names = archive.namelist()
        archive.extractall(room)
    draft.unlink()
    with h5py.File(room / _WEIGHTS, "r+") as file:
        marks: dict[int, str] = {}

        def look(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype == np.uint64 and item.shape == (2,):
                of, number = item[:].tolist()
                marks.update({number: name} if of == token else {})

        file.visititems(look)
        for number, matrix in enumerate(matrices):
            if number not in marks:
                raise BadModel(
                    f"the embedding {matrix.layer.name} is not among what Keras saves of the model, so a .keras file of it could not be "
                    "loaded; make the layer an attribute of the model, or write --output_format=saved_model"
                )
            del file[marks[number]]
            dataset = file.create_dataset(marks[number], matrix.shape, np.float32)
            start = 0
            for block in matrix.blocks:
                dataset[start : start + len(block)] = block
                start += len(block)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.write(room / name, name)


def _mark(layer: Any, mark: npt.NDArray[np.uint64]) -> None:
    """Make a server-side layer a plain one as the user wrote it, that saves a mark as its only variable."""
    layer.__class__ = layer.plain

    def save_own_variables(store: Any) -> None:
        store["0"] = mark

    layer.save_own_variables = save_own_variables


class _Gathered:
    """Answers from variables, by layer."""

    def __init__(self, variables: dict[int, Any]) -> None:
        self._variables = variables

    def look_up(self, layer: PsLayer, ids: Any) -> Any:
        return tf.gather(self._variables[id(layer)], ids)


def write_saved_model(model: Any, path: Path, matrices: Sequence[Matrix], features: Any) -> None:
    """Write a SavedModel directory in which the layers are looked up in variables; with any the model is of no use afterwards.

    `features`: what the model takes, a structure of `tf.TensorSpec`, for models that do not know it themselves.
    In the graph the variables' number of rows is not known, in what they are restored from it is.
    """
    marks = [_random(matrix.shape[1]) for matrix in matrices]
    variables = {
        id(matrix.layer): tf.Variable(mark, shape=[None, matrix.shape[1]], name=matrix.layer.name)
        for matrix, mark in zip(matrices, marks, strict=True)
    }
    with looking_up(_Gathered(variables)):
        model = with_ascii_names(model)
        library_of(model).write_saved_model(model, str(path), _signature(model, features))
    if matrices:
        _replace(path / "variables" / "variables", matrices, marks)


def with_ascii_names(model: Any) -> Any:
    """Return a model whose inputs TensorFlow's signatures can name: of a dictionary with other keys, `c0`, `c1` … in their place."""
    inputs = inputs_of(model)
    if library_of(model) is not KERAS:
        return model
    if not isinstance(inputs, dict) or all(_SIGNED.fullmatch(name) for name in inputs):
        return model
    own = {
        key: next((name for name in (key, one.name) if _SIGNED.fullmatch(name)), "")
        for key, one in inputs.items()
    }
    names = {}
    for place, (key, name) in enumerate(own.items()):
        name = name or f"c{place}"
        while not own[key] and name in own.values():
            name += "_"  # a column may be called so
        names[key] = name
    symbols = {
        key: keras.Input(
            one.shape[1:], dtype=one.dtype, name=names[key], sparse=one.sparse, ragged=one.ragged
        )
        for key, one in inputs.items()
    }
    return keras.Model({names[key]: one for key, one in symbols.items()}, model(symbols))


def _signature(model: Any, features: Any) -> Any:
    """Return what Keras is to be told of the features; nothing where it knows as much.

    Of a subclassed model Keras would remember shapes only, and take ids for float32, which rounds large ones.
    """
    dense = all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(features))
    return None if getattr(model, "inputs", None) or not dense else [features]


def _random(width: int) -> Floats:
    """Return a few rows that no other variable has."""
    return np.random.default_rng().random((8, width), np.float32)


def _replace(prefix: Path, matrices: Sequence[Matrix], marks: Sequence[Floats]) -> None:
    """Write the variables of a SavedModel again, with the matrices: each slice a checkpoint of its own, then all are made one."""
    reader = tf.train.load_checkpoint(str(prefix))
    names = list(reader.get_variable_to_shape_map())
    of_table = [_find(reader, mark) for mark in marks]
    rest = [name for name in names if name not in of_table]
    values = [tf.constant(reader.get_tensor(name)) for name in rest]
    room = prefix.parent / "parts"
    parts = [str(room / "rest")]
    tf.raw_ops.SaveV2(prefix=parts[0], tensor_names=rest, shape_and_slices=[""] * len(rest), tensors=values)
    for number, matrix in enumerate(matrices):
        rows, width = matrix.shape
        start = 0
        for block in _slices(matrix):
            parts.append(str(room / f"{number}-{start}"))
            # the form is that of TensorSlice::ParseOrDie (tensorflow/core/framework/tensor_slice.h): the whole, then first,length of each
            tf.raw_ops.SaveV2(
                prefix=parts[-1],
                tensor_names=[of_table[number]],
                shape_and_slices=[f"{rows} {width} {start},{len(block)}:-"],
                tensors=[block],
            )
            start += len(block)
    for old in prefix.parent.glob(f"{prefix.name}.*"):
        old.unlink()
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(prefix))


def _find(reader: Any, value: Floats) -> str:
    shapes = reader.get_variable_to_shape_map()
    alike = [name for name, shape in shapes.items() if tuple(shape) == value.shape]
    return next(str(name) for name in alike if np.array_equal(reader.get_tensor(name), value))


def _slices(matrix: Matrix) -> Blocks:
    """Yield larger blocks, of at most `_SLICE` bytes; each is valid until the next."""
    _, width = matrix.shape
    buffer = np.empty((max(1, _SLICE // (4 * width)), width), np.float32)
    filled = 0
    for block in matrix.blocks:
        while len(block):
            taken = block[: len(buffer) - filled]
            buffer[filled : filled + len(taken)] = taken
            filled, block = filled + len(taken), block[len(taken) :]
            if filled == len(buffer):
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]
