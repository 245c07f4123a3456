"""Readers: where records come from, seen by everybody else.

Built-in readers and the wrapper around a user's own (`custom.py`) implement the same small Protocol. A reader knows
nothing of epochs and order; the ledger says which records a chunk has, the reader fetches them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol, TypeVar

from elasticdl.data.plan.ledger import MOST_RECORDS
from elasticdl.data.plan.shard import Shard, Task, overlapping
from elasticdl.data.readers.records import Records
from elasticdl.errors import BadData
from elasticdl.files.reading import is_utf8


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `feed` learns about the records.

    Attributes:
        column_names: the columns of a table in their order; empty where records have no columns.
        column_dtypes: type of each column by its name, `string` where records are rows of strings. Of columns: NumPy's name of a number's
            type (`int64`, `float32`, `bool`), `string` or `binary`; `float32[8]` for vectors of 8, `float32[]` for vectors of any length,
            `float32[][4]` for any number of vectors of 4.
        class_names: of images, the class of each number in `label` or `classes`; empty where numbers are all that the data says.
    """

    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()


class Reader(Protocol):
    """A source of records with random access."""

    @property
    def metadata(self) -> Any:
        """Return what `feed` gets as `metadata`: a Metadata, or the object that a user's reader offers."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Return what names the present content of a shard's source, by the shard's name; sources that never change need none."""

    @property
    def block(self) -> int:
        """Return the most records that can only be had together, as those of a row group can; else 1. No task splits a block."""

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return (name, index of the first record, number of records) of each shard. Raises BadData."""

    def read(self, task: Task, records: Sequence[int]) -> Records:
        """Return `records` (indices inside the source, all of them of `task`) in the order asked.

        Records that `max_bad_records` allows to be bad are left out; of columns all may be, then the answer is an empty list. Raises
        BadData.
        """


_Opened = TypeVar("_Opened", bound=Reader)


def filled(origin: str, reader: _Opened, why: str) -> _Opened:
    """Return a reader that has records. Raises BadData, with the reason why it has none."""
    if not any(count for _, _, count in reader.create_shards()):
        raise BadData(f"{origin} has no records: {why}")
    return reader


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
        shards.append(
            Shard(name, int(start), int(count), reader.block, _mark(reader.fingerprints.get(name, "")))
        )
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


def check_unchanged(reader: Reader, shards: Sequence[Shard]) -> None:
    """Compare the sources of a reader with those that a job's shards were made of.

    A worker that joined after somebody had changed a file would train on other records than the rest. Raises BadData.
    """
    then = {shard.name: shard.fingerprint for shard in shards if shard.fingerprint}
    now = {name: _mark(fingerprint) for name, fingerprint in reader.fingerprints.items()}
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            what = "appeared" if name not in then else "gone" if name not in now else "changed"
            raise BadData(
                f"{name} has {what} since the job began; data must not change while a job runs, start the job again"
            )


def _mark(fingerprint: str) -> str:
    """Shorten a fingerprint: journals on Kubernetes have little room, and there may be thousands."""
    return hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest() if fingerprint else ""


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

    def has_met(self, shard: str, record: int) -> bool:
        """Tell whether a record was found to be bad; `record`: its index inside the source."""
        with self._lock:
            return (shard, record) in self._met

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
