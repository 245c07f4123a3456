"""Readers: where records come from, seen by everybody else.

Built-in readers (`recordfiles.py`) and the wrapper around a user's own (`custom.py`) implement the same small
Protocol. A reader knows nothing of epochs and order; the ledger says which records a chunk has, the reader
fetches them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

from elasticdl.data.plan.ledger import MOST_RECORDS
from elasticdl.data.plan.shard import Shard, Task, overlapping
from elasticdl.errors import BadData
from elasticdl.files.reading import is_utf8


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `feed` learns about the records.

    Attributes:
        column_names: the columns of a CSV file in their order; empty where records have no columns.
        column_dtypes: type of each column by its name; CSV gives `string` for all.
    """

    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)


class Reader(Protocol):
    """A source of records with random access."""

    @property
    def metadata(self) -> Any:
        """Return what `feed` gets as `metadata`: a Metadata, or the object that a user's reader offers."""

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return (name, index of the first record, number of records) of each shard. Raises BadData."""

    def read_records(self, task: Task) -> Iterator[Any]:
        """Yield the records of `task` in their order in the source. Raises BadData."""

    def read(self, task: Task, records: Sequence[int]) -> list[Any]:
        """Return `records` (indices inside the source, all of them of `task`) in the order asked.

        Records that `max_bad_records` allows to be bad are left out. Raises BadData.
        """


def shards_of(reader: Reader) -> tuple[Shard, ...]:
    """Return the reader's shards as values. Raises BadData for what can't be shards."""
    shards = []
    for entry in reader.create_shards():
        if not _is_shard(entry):
            raise BadData(
                "create_shards must return (name, start, count) for each shard: a string and two integers "
                f"from 0 to {MOST_RECORDS:,}; {reader} returned {_shown(entry)}"
            )
        name, start, count = entry
        if not is_utf8(name):
            raise BadData(f"the shard {name!r} has a name that is not text in UTF-8; give it another one")
        shards.append(Shard(name, int(start), int(count)))
    if (records := sum(shard.count for shard in shards)) > MOST_RECORDS:
        raise BadData(
            f"create_shards of {reader} returned shards with {records:,} records in all; "
            f"the training data can have {MOST_RECORDS:,}"
        )
    if twice := overlapping(shards):
        raise BadData(
            f"create_shards returned two shards that overlap, {twice[0]} and {twice[1]}; "
            "a record must be in one shard only"
        )
    return tuple(shards)


def _is_shard(entry: Any) -> bool:
    if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], str):
        return False
    return all(
        isinstance(number, Integral) and not isinstance(number, bool) and 0 <= int(number) <= MOST_RECORDS
        for number in entry[1:]
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    try:
        return repr(value)
    except ValueError:  # Python shows no integer of thousands of digits
        return f"an integer of {int(value).bit_length():,} bits"


class BadRecords:
    """The policy `max_bad_records`: how many corrupt records a process may leave out before the job fails.

    A bad record stays in the ledger, counts as read, and is absent from its chunk. So the chunk is the same
    records in any worker, and the audit's count is the ledger's. The limit counts different records
    that one process has met: meeting the same one in the next epoch costs nothing.

    Attributes:
        limit: how many are allowed.
    """

    def __init__(self, limit: int = 0, tell: Callable[[str], bool] | None = None) -> None:
        """`tell` hears once of each bad record what is wrong with it; it returns False if it should hear of it again."""
        self.limit = limit
        self._tell = tell
        self._lock = threading.Lock()
        self._met: set[tuple[str, int]] = set()
        self._told: set[tuple[str, int]] = set()

    def allow(self, shard: str, bad: Sequence[tuple[int, str]]) -> None:
        """Take note of bad records, (index, what is wrong). Raises BadData with the first beyond the limit."""
        with self._lock:
            for record, what in bad:
                self._met.add((shard, record))
                if len(self._met) > self.limit:
                    raise BadData(
                        f"{what} ({len(self._met)} bad records met, max_bad_records is {self.limit})"
                    )
                if self._tell and (shard, record) not in self._told and self._tell(what):
                    self._told.add((shard, record))
