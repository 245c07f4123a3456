"""Batches of a map-style data set, read ahead by the worker processes of PyTorch's own DataLoader.

The DataLoader gives batches in the order in which its batch sampler named them. Here the sampler asks what is expected next, and what comes
keeps its key, so that a batch that was read too early waits, and one that is not wanted any more is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from elasticdl.data.plan.loopplan import BatchOrder, LoopPlan
from elasticdl.data.prefetch import ChunkKey
from elasticdl.torch.runtime import seed_reading

_PREFETCH = 2
"""Batches of each worker process that are on their way, as in PyTorch."""

_ENDED = (
    "a process of the DataLoader has ended without a word, as those do that the kernel kills for memory; use fewer num_workers, a smaller "
    "prefetch_factor, or ask for more memory"
)
"""What lies behind a connection that is closed: PyTorch says it only if it looks before it receives."""


class BatchSource:
    """Implements `elasticdl.worker.contract.loop.LoopSource`; one thread calls it."""

    def __init__(self, dataset: Any, plan: LoopPlan, num_workers: int, **settings: Any) -> None:
        """Start the worker processes. `settings`: of `torch.utils.data.DataLoader`."""
        ahead = settings.pop("prefetch_factor", None) or _PREFETCH
        self._order = _Order(plan)
        if num_workers:
            settings.update(persistent_workers=True, prefetch_factor=ahead)
        self._loader = torch.utils.data.DataLoader(
            SeededReading(dataset, plan.seed),
            batch_sampler=self._order,
            num_workers=num_workers,
            generator=torch.Generator(),  # or it would draw from the program's
            **settings,
        )
        self._parallel = num_workers * ahead
        self._made: dict[ChunkKey, tuple[int, Any]] = {}
        self._wanted: dict[ChunkKey, None] = {}
        self._iterator: Iterator[Any] = iter(self._loader)

    def want(self, keys: Sequence[ChunkKey]) -> None:
        """Expect these batches, in this order, and no others; what is read of them already is kept."""
        wanted = dict.fromkeys(keys)
        self._made = {key: made for key, made in self._made.items() if key in wanted}
        here = {*self._made, *self._order.asked}
        self._order.expected = deque(key for key in wanted if key not in here)
        self._wanted = wanted
        # The DataLoader asks for one batch when it has given one: where few are on their way, all of them are taken, and it starts afresh.
        self._order.pausing = 0 < len(self._order.asked) < self._parallel // 2 and bool(self._order.expected)

    def get(self, key: ChunkKey) -> tuple[int, int, Any]:
        """Wait for a batch, expected or not; return the number of its records, how many of them were bad, and the batch."""
        order = self._order
        if key not in self._made and key not in order.asked:
            if key in order.expected:
                order.expected.remove(key)
            order.expected.appendleft(key)
        while key not in self._made:
            self._take(key)
        records, batch = self._made.pop(key)
        return records, 0, batch

    def _take(self, urgent: ChunkKey) -> None:
        order = self._order
        if not order.asked and self._parallel:
            order.pausing = False
            self._iterator = iter(self._loader)
        before = None if not order.asked else order.asked[0]
        try:
            batch = next(self._iterator)
        except BaseException as error:
            if before is not None or order.asked:
                order.asked.popleft()
            if self._parallel and isinstance(error, ConnectionError | EOFError):
                raise RuntimeError(_ENDED) from error
            raise
        key = order.asked.popleft()
        if key == urgent or key in self._wanted:
            self._made[key] = order.size(key), batch

    def close(self) -> None:
        """Stop the worker processes."""
        self._order.expected.clear()
        del self._iterator, self._loader


class TensorSource:
    """Implements `elasticdl.worker.contract.loop.LoopSource` for records that are rows of tensors: those of a batch are copied together.

    A batch has the bits that PyTorch's DataLoader makes of one record after the other, which takes several times as long. Nothing draws
    from a generator, so none is seeded.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], plan: LoopPlan) -> None:
        """`tensors`: see `rows_of`."""
        self._tensors, self._order = tensors, BatchOrder(plan)

    def want(self, keys: Sequence[ChunkKey]) -> None:
        """Do nothing: copying is all that there is to do."""

    def get(self, key: ChunkKey) -> tuple[int, int, Any]:
        """Return the number of a batch's records, that none of them was bad, and the batch."""
        records = torch.tensor(self._order.records(key[0], key[1]))
        return len(records), 0, [one.index_select(0, records.to(one.device)) for one in self._tensors]

    def close(self) -> None:
        """Do nothing."""


def rows_of(dataset: Any, num_workers: int, **settings: Any) -> Sequence[torch.Tensor] | None:
    """Return the tensors of which a batch can be copied; None where PyTorch's own way may give something else, or refuses a setting."""
    if num_workers or any(settings.values()) or type(dataset) is not torch.utils.data.TensorDataset:
        return None
    tensors: Sequence[torch.Tensor] = dataset.tensors
    # Records of others are no plain rows, or a batch of them has another layout in memory.
    plain = all(
        type(one) is torch.Tensor and one.layout is torch.strided and one.is_contiguous() for one in tensors
    )
    return tensors if plain and not any(one.requires_grad for one in tensors) else None


class _Order:
    """The batch sampler: it yields what is expected, as `SeededReading` reads it.

    Attributes:
        expected: batches to ask for.
        asked: batches on their way, in order.
        pausing: ask for nothing.
    """

    def __init__(self, plan: LoopPlan) -> None:
        self._order = BatchOrder(plan)
        self.expected: deque[ChunkKey] = deque()
        self.asked: deque[ChunkKey] = deque()
        self.pausing = False

    def __iter__(self) -> _Order:
        return self

    def __next__(self) -> list[int]:
        if self.pausing or not self.expected:
            raise StopIteration
        key = self.expected.popleft()
        self.asked.append(key)
        epoch, batch, _ = key
        return [epoch, batch, *self._order.records(epoch, batch).tolist()]

    def size(self, key: ChunkKey) -> int:
        """Return the records of a batch."""
        return self._order.size(key[1])


class SeededReading(torch.utils.data.Dataset):  # type: ignore[misc]
    """A data set whose batches are read with seeds of their own, whichever process reads them."""

    def __init__(self, dataset: Any, seed: int) -> None:
        """`dataset`: the program's."""
        self._dataset, self._seed = dataset, seed

    def __getitems__(self, named: list[int]) -> Any:
        """Return the examples of a batch, which is named by its epoch, its number and its records."""
        epoch, batch, *records = named
        seed_reading(self._seed, epoch, batch)
        together: Callable[[list[int]], Any] | None = getattr(self._dataset, "__getitems__", None)
        return [self._dataset[one] for one in records] if together is None else together(records)
