"""Reading ahead: chunks are read and converted on threads of their own while the loop computes.

It decides nothing about order: the loop says which chunks it expects, and asks for them one by one; a chunk
that nobody expected just goes first. One thread reads, another converts, so that one chunk is read while the one
before it is converted, and neither readers nor `feed` need locks, or find themselves on another thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import Reader
from elasticdl.data.readers.records import Records
from elasticdl.errors import BadInput, Cancelled

if TYPE_CHECKING:
    from elasticdl.data.plan.ledger import Int64s

ChunkKey = tuple[int, int, int]
"""Epoch, task id, chunk number: names a chunk for ever."""


class Chunks(Protocol):
    """What a key stands for: the ledger of the training data, or the plan of an evaluation."""

    def task_by_id(self, epoch: int, id: int) -> Task:
        """Return a task."""

    def chunk(self, task: Task, chunk: int) -> Int64s:
        """Return the records of a chunk of it as indices inside the source."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a chunk, or what reading it raised."""

    key: ChunkKey
    task: Task | None = None
    wanted: Sequence[int] = ()
    records: Records = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    records: int
    bad: int
    batch: Any
    error: BaseException | None = None


class ChunkSource:
    """Chunks by their keys, made ahead of need.

    At most `ahead` chunks wait to be fetched, so memory is bounded whatever is expected.
    """

    def __init__(self, reader: Reader, ledger: Chunks, convert: Callable[[Records], Any], ahead: int) -> None:
        self._reader = reader
        self._ledger = ledger
        self._convert = convert
        self._ahead = ahead
        lock = threading.Lock()
        self._asked = threading.Condition(lock)
        """There may be something to make."""
        self._answered = threading.Condition(lock)
        """Something was made."""
        self._has_read = threading.Condition(lock)
        """Something was read, and is to be converted."""
        self._reading = threading.Lock()
        """Held by who calls the reader."""
        self._expected: dict[ChunkKey, None] = {}
        self._under_way: set[ChunkKey] = set()
        self._read: deque[_Read] = deque()
        self._made: dict[ChunkKey, _Made] = {}
        self._urgent: ChunkKey | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []

    def want(self, keys: Sequence[ChunkKey]) -> None:
        """Expect these chunks, in this order, and no others; what is made of them already is kept."""
        with self._asked:
            self._expected = dict.fromkeys(keys)
            if not self._made.keys() <= self._expected.keys():
                self._made = {key: made for key, made in self._made.items() if key in self._expected}
            self._wake()

    def get(self, key: ChunkKey) -> tuple[int, int, Any]:
        """Wait for a chunk; return the number of its records, how many of them were bad, and the converted batch.

        Where all were bad the batch is None. Raises what reading or converting raised, and Cancelled after `close`.
        """
        with self._answered:
            if key not in self._made:
                self._urgent = key
                self._wake()
                self._answered.wait_for(lambda: self._closed or key in self._made)
                self._urgent = None
            if self._closed:
                raise Cancelled("no more chunks are read: the worker ends")
            made = self._made.pop(key)
            self._expected.pop(key, None)
            self._wake()
        if made.error is not None:
            raise made.error
        return made.records, made.bad, made.batch

    def close(self) -> None:
        """Stop reading; a `get` that waits ends with Cancelled. Does not wait for a reader that hangs."""
        with self._asked:
            self._closed = True
            self._made.clear()
            self._read.clear()
            for condition in (self._asked, self._answered, self._has_read):
                condition.notify_all()
            threads = self._threads
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def _wake(self) -> None:
        if not self._threads and not self._closed:
            self._threads = [
                threading.Thread(target=self._read_on, name="prefetch", daemon=True),
                threading.Thread(target=self._convert_on, name="convert", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        elif self._next() is not None:
            self._asked.notify()

    def _next(self) -> ChunkKey | None:
        """Return what is to be read now; None if nothing is."""
        there = self._made.keys() | self._under_way
        if self._urgent is not None and self._urgent not in there:
            return self._urgent
        if len(there) >= self._ahead:
            return None
        return next((key for key in self._expected if key not in there), None)

    def _read_on(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._closed or self._next() is not None)
                key = self._next()
                if self._closed or key is None:
                    return
                self._under_way.add(key)
            found = self._read_chunk(key)
            with self._has_read:
                if self._closed:
                    return
                if key == self._urgent:
                    self._read.appendleft(found)
                else:
                    self._read.append(found)
                self._has_read.notify()

    def _read_chunk(self, key: ChunkKey) -> _Read:
        epoch, task_id, chunk = key
        try:
            task = self._ledger.task_by_id(epoch, task_id)
            wanted = self._ledger.chunk(task, chunk).tolist()
            with self._reading:
                return _Read(key, task, wanted, self._reader.read(task, wanted))
        except BaseException as error:  # whatever it is, the one who waits must hear of it
            return _Read(key, error=error)

    def _convert_on(self) -> None:
        while True:
            with self._has_read:
                self._has_read.wait_for(lambda: self._closed or self._read)
                if self._closed:
                    return
                found = self._read.popleft()
                if not self._is_wanted(found.key):  # given up while it was read
                    self._under_way.discard(found.key)
                    self._asked.notify()
                    continue
            made = self._make(found)
            with self._answered:
                self._under_way.discard(found.key)
                # What was given up meanwhile (`want`) is dropped.
                if not self._closed and self._is_wanted(found.key):
                    self._made[found.key] = made
                self._answered.notify_all()
                if self._next() is not None:
                    self._asked.notify()

    def _is_wanted(self, key: ChunkKey) -> bool:
        return key in self._expected or key == self._urgent

    def _make(self, found: _Read) -> _Made:
        try:
            if found.error is not None:
                raise found.error
            assert found.task is not None
            return self._converted(found.task, found.wanted, found.records)
        except BaseException as error:  # whatever it is, the one who waits must hear of it
            return _Made(0, 0, None, error)

    def _converted(self, task: Task, wanted: Sequence[int], records: Records) -> _Made:
        bad = len(wanted) - len(records)
        try:
            return _Made(len(wanted), bad, self._convert(records) if len(records) else None)
        except BadInput as error:
            culprit = None
            with suppress(Exception):  # what can't be read once more, as storage may go away, is no worse
                culprit = self._culprit(task, wanted)
            where = (
                f"among the records {min(wanted)} to {max(wanted)}"
                if culprit is None
                else f"record {culprit}"
            )
            raise type(error)(f"{error} ({where} of {task.shard.name})") from error

    def _culprit(self, task: Task, wanted: Sequence[int]) -> int | None:
        """Return a record that can't be converted alone, found by halves; None if that is so of all, or only of several together.

        Raises what reading raises.
        """
        any_good = False
        while len(wanted) > 1:
            half = len(wanted) // 2
            if self._converts(task, wanted[:half]):
                any_good, wanted = True, wanted[half:]
            else:
                any_good, wanted = any_good or self._converts(task, wanted[half:]), wanted[:half]
        return wanted[0] if any_good and not self._converts(task, wanted) else None

    def _converts(self, task: Task, wanted: Sequence[int]) -> bool:
        with self._reading:
            records = self._reader.read(task, wanted)
        try:
            if len(records):
                self._convert(records)
        except Exception:  # it is tried only to narrow down an error that is reported
            return False
        return True
