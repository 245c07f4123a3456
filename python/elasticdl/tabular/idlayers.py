"""Which categories of a plan share a layer of the trained part: those that one matrix of weights can have.

A layer for each column would be as simple. But to build, trace and write a model takes a time that grows with the square of its layers, and
a table has a thousand columns. Weights are first drawn alike whatever the size of their matrix, so nothing else is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from elasticdl.tabular.features import IdFeature, Plan
from elasticdl.tabular.inputs import IdColumn, id_columns

COMMON = 8
"""Width of the embeddings of deepfm, where all have the same."""
_MOST = 2 << 20
"""Bytes of a matrix that several columns share: by default no more travels whole where there are parameter servers."""
_FLOAT = 4


class Use(StrEnum):
    """What the weights of ids are for; names of layers begin with it."""

    EMBEDDING = "embedding"
    FIELD = "field"
    WIDE = "wide"
    INDICATOR = "indicator"  # it has none: zeros and ones


@dataclass(frozen=True, slots=True)
class IdLayer:
    """A layer whose input are ids.

    Attributes:
        name: of the layer, unique in the model.
        use: see there.
        columns: one, or several that have one id in each row: ids of one come after all of the one before.
        width: of a row of weights; of zeros and ones 0.
    """

    name: str
    use: Use
    columns: tuple[IdColumn, ...]
    width: int

    @property
    def is_list(self) -> bool:
        """Tell whether its only column has several ids in a row."""
        return self.columns[0].place is None

    @property
    def places(self) -> list[int]:
        """Return where its ids are in the matrix of single ids."""
        return [one.place for one in self.columns if one.place is not None]

    @property
    def sizes(self) -> list[int]:
        """Return how many ids each column has."""
        return [one.feature.size for one in self.columns]

    @property
    def offsets(self) -> list[int]:
        """Return the first id of each column in the layer's matrix."""
        return [*accumulate(self.sizes, initial=0)][:-1]


_USES = {
    "dnn": (Use.EMBEDDING,),
    "linear": (Use.WIDE,),
    "wide_deep": (Use.WIDE, Use.EMBEDDING),
    "deepfm": (Use.FIELD, Use.WIDE),
    "dcn": (Use.EMBEDDING,),
}
_LEFT_OUT = {Use.WIDE: "deep", Use.EMBEDDING: "wide"}
"""The part of the model whose own features a use has no layer for."""


def id_layers_of(plan: Plan) -> list[IdLayer]:
    """Return all layers of ids of a plan's model."""
    return [layer for use in _USES[plan.network.kind] for layer in id_layers(plan, use)]


def id_layers(plan: Plan, use: Use) -> list[IdLayer]:
    """Return the layers of one use, some of which may be zeros and ones in place of embeddings."""
    found: list[tuple[str, Use, list[IdColumn], int]] = []
    open_: dict[tuple[Use, int], tuple[int, list[IdColumn]]] = {}
    for place, one in enumerate(id_columns(plan)):
        if one.feature.part and one.feature.part == _LEFT_OUT.get(use):
            continue
        of = Use.INDICATOR if use is Use.EMBEDDING and one.feature.is_indicator else use
        width = _width(plan, of, one.feature)
        size = _FLOAT * one.feature.size * width
        is_shared = one.place is not None and size <= _MOST
        filled, columns = open_.get((of, width), (_MOST, []))
        if is_shared and columns and filled + size <= _MOST:
            columns.append(one)
        else:
            filled, columns = 0, [one]
            found.append((f"{of}_{place}", of, columns, width))
        if is_shared:
            open_[of, width] = filled + size, columns
    return [IdLayer(name, of, tuple(columns), width) for name, of, columns, width in found]


def _width(plan: Plan, use: Use, feature: IdFeature) -> int:
    match use:
        case Use.EMBEDDING:
            return feature.width
        case Use.FIELD:
            return COMMON
        case Use.WIDE:
            return plan.label.units
        case Use.INDICATOR:
            return 0
