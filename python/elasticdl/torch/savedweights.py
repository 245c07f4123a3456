"""How a model is called whose tables are looked up in a checkpoint of parameter servers; its other weights are in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.torch.device import moved
from elasticdl.torch.lookups import Looked, looking_up, places_of
from elasticdl.torch.matching import give_values, tables_like
from elasticdl.torch.tables import Ids
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """A batch with the rows of its lookups.

    Attributes:
        examples: n; 0 if there are none.
        looked: with the ids.
        rows: of each table, of shape [distinct ids, width].
    """

    examples: int
    looked: Looked = field(repr=False)
    rows: Sequence[torch.Tensor] = field(repr=False)


class SavedWeights:
    """Implements `elasticdl.torch.evaluation.Weights`."""

    def __init__(self, user: UserModel, model: torch.nn.Module, saved: SavedRows) -> None:
        """Give a model its values but the rows of its tables. Raises BadModel if the checkpoint is of another model."""
        self._user, self._saved = user, saved
        self._tables = tables_like(user, model, saved.catalog)
        give_values(user, model, saved.catalog, saved.values)

    def converted(self, batch: Batch) -> Found:
        """Look up the rows of a batch. Raises BadData."""
        if not batch.examples:
            return Found(0, Looked(self._user.path, batch, (), lambda table: np.empty(0, np.int64)), ())

        def find(table: int, ids: Ids) -> tuple[Ids, npt.NDArray[Any]]:
            distinct, places = np.unique(ids, return_inverse=True)
            return distinct, places

        distinct, places = places_of(self._tables, batch, self._user.path, find)
        rows = [torch.from_numpy(self._saved.rows(table, ids)) for table, ids in enumerate(distinct)]
        return Found(batch.examples, Looked(self._user.path, batch, places, distinct.__getitem__), rows)

    def any_rows(self, converted: Found) -> Sequence[Floats]:
        """Return none: a batch has its own."""
        return ()

    def batch_of(self, converted: Found) -> Batch:
        """Return the batch."""
        return converted.looked.batch

    def looking_up(
        self, converted: Found, there: Batch, rows: Sequence[Floats]
    ) -> AbstractContextManager[None]:
        """Let layers find the batch's rows."""
        device = next((one.weight.device for one in self._tables.values()), torch.device("cpu"))
        return looking_up(self._tables, converted.looked, there, moved(list(converted.rows), device))
