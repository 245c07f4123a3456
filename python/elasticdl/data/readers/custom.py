"""Readers that users write: `custom_data_reader` in the model file, wrapped so that they look like the
built-in ones.

A user's reader yields the records of a range one after the other; the ledger permutes records inside a task.
So the wrapper reads a task once from beginning to end, keeps it while its chunks are consumed, and picks from
it.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import Metadata
from elasticdl.errors import BadData, BadModel, BadSetting

_TASKS_KEPT = 32
"""Tasks kept at most; a task is dropped earlier when all its records have been handed out."""


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The part of a shard that a task covers, by the names that readers of the earlier generation use."""

    name: str
    start: int
    end: int
    indices: None = None


@dataclass(frozen=True, slots=True)
class TaskRange:
    """What a user's `read_records` gets: records start … end - 1 of a shard.

    Attributes:
        shard: name, start and end in one.
        shard_name: the shard's name again.
        start: first record, counted as in `create_shards`.
        end: one past the last record.
        task_id: number of the task.
    """

    shard: ShardRange
    shard_name: str
    start: int
    end: int
    task_id: int


class UserReader(Protocol):
    """What a user's `custom_data_reader` returns; `metadata` may be there too."""

    def read_records(self, task: TaskRange) -> Iterator[Any]:
        """Yield records task.start … task.end - 1 of the shard, in this order, the same each time."""

    def create_shards(self) -> Any:
        """Return [(name, start, count), …], {name: (start, count)} or {name: [(start, count), …]}."""


@dataclass(slots=True)
class _Kept:
    records: list[Any]
    left: int


class CustomReader:
    """A user's reader with random access inside a task.

    Attributes:
        metadata: what the user's reader offers, or an empty Metadata.
        fingerprints: of the user's sources nothing is known.
        block: a task is read as a whole, whichever records it has.
    """

    fingerprints: Mapping[str, str] = MappingProxyType({})
    block = 1

    def __init__(self, reader: UserReader) -> None:
        self._reader = reader
        self.metadata: Any = getattr(reader, "metadata", None) or Metadata()
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], _Kept] = OrderedDict()

    def __str__(self) -> str:
        return type(self._reader).__name__

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return the user's shards in today's form. Raises BadData if they have none."""
        shards = self._reader.create_shards()
        if isinstance(shards, Mapping):
            shards = [(name, *part) for name, rest in shards.items() for part in _parts(rest)]
        try:
            return [tuple(shard) for shard in shards]
        except TypeError:
            raise BadData(
                f"create_shards must return a list of (name, start, count); {self} returned {shards!r}"
            ) from None

    def read_records(self, task: Task) -> Iterator[Any]:
        """Yield the task's records as the user's reader gives them."""
        part = ShardRange(task.shard.name, task.start, task.end)
        yield from self._reader.read_records(TaskRange(part, part.name, part.start, part.end, task.id))

    def read(self, task: Task, records: Sequence[int]) -> list[Any]:
        """Return `records` of `task` in the order asked.

        Raises BadData if the user's reader gives too few or too many.
        """
        if not records:
            return []
        key = (task.epoch, task.id)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = _Kept(self._whole(task), task.count)
                self._kept[key] = kept
                if len(self._kept) > _TASKS_KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            kept.left -= len(records)
            if kept.left <= 0:
                self._kept.pop(key, None)
        return [kept.records[record - task.start] for record in records]

    def _whole(self, task: Task) -> list[Any]:
        records = []
        for record in self.read_records(task):
            records.append(record)
            if len(records) > task.count:
                break
        if len(records) != task.count:
            got = f"more than {task.count}" if len(records) > task.count else len(records)
            raise BadData(
                f"read_records of {self} gave {got} records for the records {task.start} "
                f"to {task.end - 1} of shard {task.shard.name!r}; expected {task.count}. "
                "Does create_shards count right?"
            )
        return records


def _parts(rest: Any) -> list[Sequence[Any]]:
    """Return start and count of each part that a mapping has for a name: of one, or of several in a list."""
    if not isinstance(rest, tuple | list):
        return [(rest,)]
    return list(rest) if rest and all(isinstance(part, tuple | list) for part in rest) else [rest]


def open_custom_reader(
    factory: Callable[..., Any], origin: str, records_per_task: int, params: Mapping[str, Any]
) -> CustomReader:
    """Call the user's `custom_data_reader(data_origin, records_per_task=None, **params)` and wrap what it
    returns.

    Raises BadSetting for parameters that it does not take, BadModel if the result is no reader.
    """
    name = getattr(factory, "__name__", "custom_data_reader")
    accepted = inspect.signature(factory).parameters
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    if not open_ended:
        for param in params:
            if param not in accepted:
                known = ", ".join(list(accepted)[1:]) or "nothing"
                raise BadSetting(f"{name} takes no parameter {param!r}; data_reader_params may give: {known}")
    arguments = dict(params)
    if open_ended or "records_per_task" in accepted:
        arguments.setdefault("records_per_task", records_per_task)
    reader = factory(origin, **arguments)
    for method in ("read_records", "create_shards"):
        if not callable(getattr(reader, method, None)):
            raise BadModel(
                f"{name} must return an object with read_records(task) and create_shards(); got {reader!r}"
            )
    return CustomReader(reader)
