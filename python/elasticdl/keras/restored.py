"""A user's model that gets its weights from a checkpoint of parameter servers, only to be written for plain users of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadModel
from elasticdl.keras.building import new_model
from elasticdl.keras.embedding import Recorded, looking_up, server_side
from elasticdl.keras.export import export
from elasticdl.keras.library import Library
from elasticdl.keras.matching import tables_of, variables_of
from elasticdl.keras.serving import served
from elasticdl.keras.streaming import Matrix
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


class RestoredModel:
    """A model without data: its inputs have to be known, as those of functional models are."""

    def __init__(self, user: UserModel, catalog: Catalog, threshold: int, library: Library) -> None:
        """Build the model, and find the catalog's tables and variables in it.

        Raises BadModel if it is not the model of the catalog, or not one whose inputs are known.
        """
        self._catalog = catalog
        with server_side(threshold, library), looking_up(Recorded()):
            self._model = new_model(user, catalog.seed, library)
        if not getattr(self._model, "inputs", None):
            raise BadModel(
                f"{user.path}: the model does not know its inputs before it is called with data, which a checkpoint does not have; make "
                "it a functional model, or write --output_format=parquet"
            )
        recorded, inputs = Recorded(), tf.nest.map_structure(_spec, self._model.input)
        with looking_up(recorded):
            try:
                # symbols of Keras know their shapes without a call of the layers
                tf.function(self._model).get_concrete_function(inputs)
            except Exception as error:
                raise BadModel(
                    f"{user.path}: the model can't be called: {describe(error, user.path)}"
                ) from error
        self._served = served(user, self._model)
        self._layers = tables_of(user, catalog, recorded.layers)
        for layer in self._layers:
            if layer.input_dim is None:
                raise BadModel(
                    f"{user.path}: the embedding {layer.name} has ids of any range, so no matrix of a Keras model can hold its rows; "
                    "write --output_format=parquet"
                )
        self._variables = variables_of(user, catalog, self._model)

    def rows(self) -> dict[int, int]:
        """Return how many rows each table's matrix has."""
        return {table: layer.input_dim or 0 for table, layer in enumerate(self._layers)}

    def export(
        self, path: str, kind: str, values: Mapping[int, npt.NDArray[np.float32]], tables: TableReader
    ) -> None:
        """Write the model as `kind`; this object is of no use afterwards. Raises OSError with what was at `path` intact."""
        for number, value in values.items():
            variable = self._variables[number]
            variable.assign(value.reshape(variable.shape))
        rows = self.rows()
        matrices = [
            Matrix(layer, tables.matrix(table, rows[table])) for table, layer in enumerate(self._layers)
        ]
        export(self._served, path, kind, (), matrices)


def _spec(symbol: Any) -> Any:
    if hasattr(symbol, "type_spec"):  # of Keras 2
        return symbol.type_spec
    if symbol.sparse:
        return tf.SparseTensorSpec(symbol.shape, symbol.dtype)
    if symbol.ragged:
        return tf.RaggedTensorSpec(symbol.shape, symbol.dtype)
    return tf.TensorSpec(symbol.shape, symbol.dtype)
