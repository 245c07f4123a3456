"""A model that gets its weights from a checkpoint of parameter servers, only to be written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadModel
from elasticdl.reference.building import make_model
from elasticdl.reference.psadapter import whole
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.npzfile import write_npz


class RestoredModel:
    """Implements `elasticdl.worker.contract.framework.RestoredModel`."""

    def __init__(self, user: UserModel, catalog: Catalog) -> None:
        """Raises BadModel if the checkpoint's tables are not those of the model."""
        self._model, self._catalog = make_model(user), catalog
        there = {table.name: table.width for table in catalog.tables}
        here = {name: table.width for name, table in self._model.tables().items()}
        if there != here:
            raise BadModel(
                f"{user.path}: the checkpoint has the tables {_list(there)}, and the model {_list(here)}; give the --model_def and "
                "--model_params of the job that wrote it"
            )

    def rows(self) -> Mapping[int, int]:
        """Return how many rows each table's matrix has."""
        return {number: table.ids for number, table in enumerate(self._model.tables().values())}

    def export(
        self, path: str, kind: str, values: Mapping[int, npt.NDArray[np.float32]], tables: TableReader
    ) -> None:
        """Write the model. Raises OSError with what was at `path` intact."""
        variables = self._catalog.variables
        dense = {
            variables[number].name: value.reshape(variables[number].shape) for number, value in values.items()
        }
        write_npz(path, whole(self._model, dense, tables))


def _list(tables: Mapping[str, int]) -> str:
    return ", ".join(f"{name} of width {width}" for name, width in sorted(tables.items())) or "none"
