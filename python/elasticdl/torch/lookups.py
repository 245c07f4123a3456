"""What the layers of a model find while it is called on one batch: the rows of its distinct ids, and where those of each id are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from elasticdl.errors import BadModel
from elasticdl.torch.device import moved
from elasticdl.torch.embedding import Embedding, as_int64
from elasticdl.torch.tables import Ids, Tables, ids_of
from elasticdl.worker.fedbatch import Batch

Distinct = TypeVar("Distinct")


@dataclass(frozen=True, slots=True)
class Looked:
    """A batch with the ids that it looks up.

    Attributes:
        path: of the model file, for messages.
        batch: as the model takes it.
        places: of each table by feature, in the shape of the ids, where the row of each is among those of the distinct ids; padding is
            behind them.
        distinct: returns the distinct ids of a table, by its number.
    """

    path: Path
    batch: Batch
    places: Sequence[Mapping[str, torch.Tensor]] = field(repr=False)
    distinct: Callable[[int], Ids] = field(repr=False)


def places_of(
    tables: Tables, batch: Batch, path: Path, find: Callable[[int, Ids], tuple[Distinct, npt.NDArray[Any]]]
) -> tuple[list[Distinct], list[dict[str, torch.Tensor]]]:
    """Look up the ids of a batch; return what `find` made of those of each table, and `Looked.places`. Raises BadData.

    `find`: takes a table's number and ids, shape [n]; returns what it makes of them, with a length, and their places.
    """
    made, places = [], []
    for number, (name, layer) in enumerate(tables.items()):
        found = ids_of(name, layer, batch.features, path)
        ids = np.concatenate([one.reshape(-1) for one in found.values()])
        kept = slice(None) if layer.padding_idx is None else ids != layer.padding_idx
        distinct, inverse = find(number, np.ascontiguousarray(ids[kept]))
        all_places = np.full(len(ids), len(distinct), np.int64)  # type: ignore[arg-type]
        all_places[kept] = inverse
        made.append(distinct)
        ends = np.cumsum([one.size for one in found.values()])[:-1]
        of_features = np.split(all_places, ends)
        places.append(
            {
                feature: torch.from_numpy(at).reshape(one.shape)
                for (feature, one), at in zip(found.items(), of_features, strict=True)
            }
        )
    return made, places


class Given:
    """Implements `elasticdl.torch.embedding.Lookup` for one table and one batch."""

    def __init__(
        self, layer: Embedding, table: int, looked: Looked, there: Batch, rows: torch.Tensor
    ) -> None:
        """`rows`: of the distinct ids, shape [n, embedding_dim]; `there`: the batch with which the model is called, on their device."""
        self._layer, self._table, self._looked = layer, table, looked
        places = moved(looked.places[table], rows.device)
        self._features = [(there.features[name], at) for name, at in places.items()]
        self._rows = rows
        if layer.padding_idx is not None:
            self._rows = torch.cat([rows, rows.new_zeros(1, layer.embedding_dim)])

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids. Raises BadModel for an id that the layer's features do not have."""
        for feature, places in self._features:
            if ids is feature:
                return nn.functional.embedding(places, self._rows)
        return nn.functional.embedding(self._search(as_int64(ids)), self._rows)

    def _search(self, ids: torch.Tensor) -> torch.Tensor:
        distinct = torch.tensor(self._looked.distinct(self._table), device=ids.device)
        ordered, order = torch.sort(distinct)
        padding = self._layer.padding_idx
        is_padding = torch.zeros_like(ids, dtype=torch.bool) if padding is None else ids == padding
        at = torch.searchsorted(ordered, ids.contiguous()).clamp(max=max(len(ordered) - 1, 0))
        missing = ~is_padding & (ordered[at] != ids if len(ordered) else torch.ones_like(is_padding))
        if missing.any():
            features = " and ".join(map(repr, self._layer.feature))
            raise BadModel(
                f"{self._looked.path}: the Embedding of {features} is called with the id {int(ids[missing][0])}, which that feature of the "
                "batch does not have, so its row was not fetched; name all features that it is called with (feature=)"
            )
        if not len(ordered):
            return torch.zeros_like(ids)
        return torch.where(is_padding, len(ordered), order[at])


@contextmanager
def looking_up(tables: Tables, looked: Looked, there: Batch, rows: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let layers find rows while the model is called; `there`: the batch that it is called with, on the device of the rows."""
    for table, (layer, of_table) in enumerate(zip(tables.values(), rows, strict=True)):
        layer.lookup = Given(layer, table, looked, there, of_table)
    try:
        yield
    finally:
        for layer in tables.values():
            layer.lookup = None
