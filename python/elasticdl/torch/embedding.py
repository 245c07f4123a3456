"""The layer for tables of ids that may live on parameter servers, row by row, and may be larger than a worker.

It knows nothing of servers: where its rows live is decided when it is made. Rows have to be asked for before the step that looks them up,
so the layer names the features of the batch that have its ids; in `forward` it is called with these, as any embedding is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from elasticdl.errors import BadModel

COMBINERS = ("sum", "mean", "sqrtn")
_on_servers: ContextVar[bool] = ContextVar("on_servers", default=False)


class Lookup(Protocol):
    """Where a layer without a matrix finds its rows in a step."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of int64 ids of any shape, of the shape of the ids and one dimension more; zeros for padding."""


@contextmanager
def on_servers() -> Iterator[None]:
    """Let the layers that are made meanwhile have their rows on parameter servers; those that are called meanwhile find zeros."""
    token = _on_servers.set(True)
    try:
        yield
    finally:
        _on_servers.reset(token)
        if "torch._dynamo" in sys.modules and not Embedding.is_left_to_python:
            Embedding.is_left_to_python = True
            # for `torch.compile`: what is found is another object in each step, for which it would make code each time
            Embedding._looked_up = torch.compiler.disable(Embedding._looked_up)  # type: ignore[method-assign]


class Embedding(nn.Module):  # type: ignore[misc]  # PyTorch is not there where types are checked
    """An embedding of ids of any range, whose rows may be combined over the last dimension of the ids.

    Ids are integers of any type and shape; negative ones, and the upper half of uint64, are ids like any other. Rows live on parameter
    servers if the job has them; without, the layer has the matrix of `torch.nn.Embedding`, for which it needs `num_embeddings`.

    Attributes:
        weight: the matrix, of shape [num_embeddings, embedding_dim]; with rows on servers a parameter without rows, which stands for the
            table among the parameters that `optimizer` gets.
        feature: names of the features that have its ids.
    """

    weight: nn.Parameter
    is_left_to_python = False
    """Whether `torch.compile` leaves lookups alone."""

    def __init__(
        self,
        embedding_dim: int,
        num_embeddings: int | None = None,
        *,
        feature: str | Sequence[str],
        initializer: Callable[[torch.Tensor], Any] = nn.init.normal_,
        combiner: str | None = None,
        padding_idx: int | None = None,
    ) -> None:
        """Make the matrix, unless parameter servers hold the rows.

        Args:
            embedding_dim: weights of a row.
            num_embeddings: ids are 0 up to this; None: any 64 bits.
            feature: the name in the dictionary of features, or several names, whose ids `forward` is called with.
            initializer: of rows that have not been trained: one of `torch.nn.init`, as a `functools.partial` with its arguments.
            combiner: `sum`, `mean` (divided by the sum of the weights) or `sqrtn` (by the root of the sum of their squares); nothing to
                combine gives zeros. None: a row of each id.
            padding_idx: this id is padding: it gives zeros, or is left out of what is combined, and is not trained.

        Raises BadModel for another combiner, and for a table of any range without parameter servers.
        """
        super().__init__()
        if combiner is not None and combiner not in COMBINERS:
            raise BadModel(f"Embedding: combiner is None, {', '.join(COMBINERS)}; received {combiner!r}")
        self.embedding_dim, self.num_embeddings = embedding_dim, num_embeddings
        self.feature = (feature,) if isinstance(feature, str) else tuple(feature)
        self.initializer, self.combiner, self.padding_idx = initializer, combiner, padding_idx
        self.is_on_servers = _on_servers.get()
        self.lookup: Lookup | None = None
        """Where rows are found in a step that an adapter computes."""
        if self.is_on_servers:
            self.weight = nn.Parameter(torch.empty(0, embedding_dim))
            return
        if num_embeddings is None:
            raise BadModel(
                f"the Embedding of {self._named()} has ids of any range, for which rows live on parameter servers: train it with "
                "--num_ps_pods, or give it num_embeddings"
            )
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        with torch.no_grad():
            initializer(self.weight)
            self._clear_padding()

    def take(self, matrix: torch.Tensor) -> None:
        """Have the rows of servers as a matrix, whose row of padding becomes zeros; it is not to be trained."""
        self.weight, self.is_on_servers = nn.Parameter(matrix, requires_grad=False), False
        self._clear_padding()

    def _clear_padding(self) -> None:
        if self.padding_idx is not None and 0 <= self.padding_idx < len(self.weight):
            with torch.no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, ids: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of ids, or what they are combined to; `weights` of a combiner have the shape of the ids."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
            raise BadModel(
                f"the Embedding of {self._named()} takes integers as ids; received {str(ids.dtype).removeprefix('torch.')}"
            )
        if self.combiner is None and weights is not None:
            raise BadModel(
                f"the Embedding of {self._named()} has no combiner, which weights need; give it one of {', '.join(COMBINERS)}"
            )
        rows = self._rows(ids)
        return rows if self.combiner is None else self._combined(rows, ids, weights)

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        if not self.is_on_servers:
            ids = as_int64(ids)
            if self.padding_idx is None:
                return nn.functional.embedding(ids, self.weight)
            found = nn.functional.embedding(ids.masked_fill(ids == self.padding_idx, 0), self.weight)
            return found * self._kept(ids, found)
        return self._looked_up(ids)

    def _looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        if self.lookup is not None:
            return self.lookup.rows(ids)
        if _on_servers.get():
            return torch.zeros(*ids.shape, self.embedding_dim, device=ids.device)
        raise BadModel(
            f"the Embedding of {self._named()} has its rows on parameter servers, and finds those of a minibatch only while a worker "
            "computes that; do not call the model elsewhere"
        )

    def _combined(self, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        factors = self._kept(ids, rows) if weights is None else weights.to(rows.dtype).unsqueeze(-1)
        if weights is not None and self.padding_idx is not None:
            factors = factors * self._kept(ids, rows)
        total = (rows * factors).sum(-2)
        if self.combiner == "sum":
            return total
        norm = factors.sum(-2) if self.combiner == "mean" else factors.square().sum(-2).sqrt()
        return torch.where(norm == 0, 0.0, total / torch.where(norm == 0, 1.0, norm))

    def _kept(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return 1 for each id, and 0 for padding, of the type of rows and with their number of dimensions."""
        kept = torch.ones_like(ids, dtype=rows.dtype) if self.padding_idx is None else ids != self.padding_idx
        return kept.to(rows.dtype).unsqueeze(-1)

    def extra_repr(self) -> str:
        """Return the arguments, for people."""
        return (
            f"{self.embedding_dim}, {self.num_embeddings}, feature={self._named()}, combiner={self.combiner}"
        )

    def _named(self) -> str:
        return " and ".join(map(repr, self.feature))

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        if self.is_on_servers and f"{prefix}weight" in state:
            raise BadModel(
                f"the Embedding of {self._named()} has weights from a file, which rows on parameter servers can't have; leave "
                f"{prefix}weight out of what is loaded, or train without --num_ps_pods"
            )
        super()._load_from_state_dict(state, prefix, *others)


def as_int64(ids: torch.Tensor) -> torch.Tensor:
    """Return integers as int64; those that it can't express keep their bits."""
    return ids.view(torch.int64) if ids.dtype is torch.uint64 else ids.to(torch.int64)
