"""A user's model that gets its weights from a checkpoint of parameter servers, only to be written for plain users of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadModel
from elasticdl.torch import building
from elasticdl.torch.embedding import on_servers
from elasticdl.torch.export import export
from elasticdl.torch.matching import give_values, tables_like
from elasticdl.torch.matrices import with_matrices
from elasticdl.worker.contract.usermodel import UserModel


class RestoredModel:
    """Implements `elasticdl.worker.contract.framework.RestoredModel`."""

    def __init__(self, user: UserModel, catalog: Catalog) -> None:
        """Build the model, and find the catalog's tables in it. Raises BadModel if it is not the model of the catalog."""
        self._user, self._catalog = user, catalog
        with on_servers():
            self._model = building.make_model(user, catalog.seed, None)
        self._tables = tables_like(user, self._model, catalog)
        for name, layer in self._tables.items():
            if layer.num_embeddings is None:
                raise BadModel(
                    f"{user.path}: the embedding {name} has ids of any range, so no matrix of a PyTorch model can hold its rows; write "
                    "--output_format=parquet"
                )

    def rows(self) -> Mapping[int, int]:
        """Return how many rows each table's matrix has."""
        return {number: layer.num_embeddings or 0 for number, layer in enumerate(self._tables.values())}

    def export(
        self, path: str, kind: str, values: Mapping[int, npt.NDArray[np.float32]], tables: TableReader
    ) -> None:
        """Write the model as `kind`; this object is of no use afterwards. Raises OSError with what was at `path` intact."""
        give_values(self._user, self._model, self._catalog, values)
        with with_matrices(self._tables, tables, path):
            export(self._model, path, kind, None, self._user.path)
