"""Reading what a job has left: whole lines whose checksums hold, the master's files, and what there was to train.

Nothing is concluded here. The format is in the package's docstring.
"""

from __future__ import annotations

import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NewType

from elasticdl.audit.report import EpochReport, count_of
from elasticdl.errors import AuditFailed, BadInput
from elasticdl.files import reading
from elasticdl.files.reading import integer

FORMAT = 1

View = NewType("View", int)
Step = NewType("Step", int)

_HEADER = b"elasticdl-audit"
_MAX_DIGITS = 18
"""Longer numbers are no numbers of ours; keeps a strange file from costing quadratic time."""
_MAX_MASK = 1 << 14
"""Digits of a set of slots."""
_MAX_LINE = 1 << 20
"""Bytes of a line; a view of ten thousand members has a third of that."""
_SUM_DIGITS = 32
_PAGE = 1 << 10
"""Chunks whose marks lie together."""
MOST_EPOCHS = 1 << 22
"""More than any job has; the report has some figures for each."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What the master says of the end; the format is in the package's docstring."""

    view: View
    step: Step
    state_view: View
    complete: bool


@dataclass(frozen=True, slots=True)
class Beginning:
    """From where the job continued; the format is in the package's docstring."""

    checkpoint: str
    low: int
    above: frozenset[int]
    slots: dict[int, tuple[int, int]]
    begun: dict[int, int]

    def held(self, number: int, chunk: int) -> bool:
        """Tell whether slots held a chunk of a task that was not done."""
        return chunk < self.begun.get(number, 0)

    def has(self, number: int) -> bool:
        """Tell whether a task was done before."""
        return number < self.low or number in self.above

    def tasks(self, first: int, end: int) -> int:
        """Return how many tasks from `first` to before `end` were done before."""
        return max(0, min(end, self.low) - first) + sum(first <= task < end for task in self.above)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was trained before a synchronous job, which continued from a checkpoint.

    Attributes:
        checkpoint: from which.
        step: committed steps.
        epoch: before it all was trained.
        done: of it the tasks that were trained.
        chunks: of it the chunks that were trained, by number.
        records: how many records they have.
    """

    checkpoint: str
    step: Step
    epoch: int
    done: int
    chunks: Seen
    records: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole line whose checksum holds."""

    line: int
    offset: int
    kind: bytes
    numbers: tuple[int, ...]
    members: tuple[str, ...] = ()
    slots: int = 0


CHUNKS = b"chunk", b"idle"
"""Lines on a chunk of a job with parameter servers; what is `idle` changes nothing in its slots."""
_FIELDS = {b"base": 3, b"contributed": 8, b"committed": 4, b"chunk": 6, b"idle": 6}
"""Numbers per kind of line; `base` has one more field, the members, and those on chunks their slots."""


class File:
    """One member's file up to a size; whole lines are verified each time it is read."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.member: str | None = None
        self.cut = False

    def entries(self) -> Iterator[Entry]:
        """Yield its whole lines, the first one excepted. Raises AuditFailed where a checksum does not hold."""
        offset = checksum = 0
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            raise AuditFailed(f"{self.path.name}: missing file; it was there a moment ago") from None
        with stream:
            number = 0
            while offset < self.size:
                line = stream.readline(min(self.size - offset, _MAX_LINE))
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) == _MAX_LINE:
                        raise self.altered(number, f"it has no end within {_MAX_LINE:,} bytes")
                    self.cut = True
                    return
                text, space, told = line[:-1].rpartition(b" ")
                checksum = zlib.crc32(text, checksum)
                if not space or told != b"%08x" % checksum:
                    raise self.altered(
                        number, "its checksum does not hold: the line, or one before it, was edited or lost"
                    )
                if number == 1:
                    self._open(text)
                else:
                    yield self._parse(text, number, offset)
                offset += len(line)

    def altered(self, line: int, why: str) -> AuditFailed:
        """Return the error about a line."""
        return AuditFailed(f"{self.path.name}, line {line}: {why}")

    def _open(self, text: bytes) -> None:
        fields = text.split(b" ")
        if len(fields) != 4 or fields[0] != _HEADER:
            raise self.altered(1, "not the first line of an audit file")
        if fields[1] != b"%d" % FORMAT:
            raise self.altered(1, f"written in format {fields[1]!r}; this auditor reads format {FORMAT}")
        member, name = (field.decode("utf-8", "replace") for field in fields[2:])
        if self.path.name != f"{name}-{member}.audit":
            raise self.altered(1, f"the file of {name}-{member} under another name")
        self.member = member

    def _parse(self, text: bytes, line: int, offset: int) -> Entry:
        kind, *fields = text.split(b" ")
        expected = _FIELDS.get(kind)
        if expected is None:
            raise self.altered(line, f"unknown kind of line {kind.decode('utf-8', 'replace')!r}")
        members: tuple[str, ...] = ()
        if kind == b"base" and fields:
            members = tuple(fields.pop().decode("utf-8", "replace").split(","))
        slots = 0
        if kind in CHUNKS and fields:
            slots = self._slots(fields.pop(), line)
        if len(fields) != expected or not all(
            field.isdigit() and len(field) <= _MAX_DIGITS for field in fields
        ):
            raise self.altered(line, f"{kind.decode()} takes {expected} numbers")
        return Entry(line, offset, kind, tuple(map(int, fields)), members, slots)

    def _slots(self, field: bytes, line: int) -> int:
        if not field or len(field) > _MAX_MASK or field.strip(b"0123456789abcdef"):
            raise self.altered(line, "its slots are no hexadecimal number")
        return int(field, 16)


def sizes_of(directory: Path) -> dict[str, int]:
    """Return the sizes of the workers' files, by name."""
    with os.scandir(directory) as found:
        return {
            file.name: file.stat().st_size
            for file in found
            if file.name.endswith(".audit") and file.is_file()
        }


def read_json(path: Path) -> dict[str, Any]:
    """Read `manifest` or `finished` and check its checksum and format."""
    try:
        body = reading.fields(reading.load_file(path))
        told = body.pop("checksum", None)
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    except OSError as error:
        raise AuditFailed(f"{path.name}: it can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise AuditFailed(f"{path.name}: not what the master writes; it was cut or edited") from None
    if told != f"{zlib.crc32(text):08x}":
        raise AuditFailed(f"{path.name}: its checksum does not hold: it was edited")
    if body.get("format") != FORMAT:
        raise AuditFailed(
            f"{path.name}: written in format {body.get('format')!r}; this auditor reads format {FORMAT}"
        )
    return dict(body)


def read_manifest(directory: Path) -> Manifest:
    """Read what there was to train. Raises BadInput if there is nothing to audit, AuditFailed for what the master never wrote."""
    path = directory / "manifest"
    if not path.is_file():
        if directory.is_dir() and sizes_of(directory):
            raise AuditFailed(f"{path.name}: missing file; without it nobody knows which records there were")
        raise BadInput(
            f"{directory} holds no audit: there is no file {path.name}. Give the directory that --audit named."
        )
    body = read_json(path)
    try:
        shards = [_shard(one) for one in reading.items(reading.field(body, "shards"))]
        sizes = (
            integer(reading.field(body, "records_per_task"), 1),
            integer(reading.field(body, "minibatch_size"), 1),
            integer(reading.field(body, "num_epochs"), most=MOST_EPOCHS),
        )
        has_servers = reading.flag(body.get("serving", False))
    except ValueError as error:
        raise AuditFailed(
            f"{path.name}: shards, records_per_task, minibatch_size or num_epochs is missing or can't be: {error}"
        ) from None
    if not any(count for _, _, count in shards):
        raise AuditFailed(f"{path.name}: its shards have no records, and a job has some")
    _check_ranges(shards, path)
    return Manifest(shards, *sizes, has_servers)


def _check_ranges(shards: Sequence[tuple[str, int, int]], path: Path) -> None:
    """Shards of one name have different records: one that was in two would be trained twice in an epoch, as two records of the proof."""
    ends: dict[str, tuple[int, int]] = {}
    for name, start, count in sorted(shard for shard in shards if shard[2]):
        before = ends.get(name)
        if before is not None and start < before[1]:
            raise AuditFailed(
                f"{path.name}: two shards of {name} overlap, records {before[0]} to {before[1] - 1} and records {start} to "
                f"{start + count - 1}: what is in both was trained twice in each epoch"
            )
        ends[name] = start, start + count


def read_finished(directory: Path) -> Finished | None:
    """Read how the job has ended, None if it has not. Raises AuditFailed."""
    path = directory / "finished"
    if not path.exists():
        return None
    body = read_json(path)
    try:
        return Finished(
            View(integer(reading.field(body, "view"))),
            Step(integer(reading.field(body, "step"))),
            View(integer(reading.field(body, "state_view"))),
            reading.flag(reading.field(body, "complete")),
        )
    except ValueError as error:
        raise AuditFailed(
            f"{path.name}: view, step, state_view or complete is missing or can't be: {error}"
        ) from None


def read_beginning(directory: Path) -> Beginning | None:
    """Read from where the job continued, None if it began anew. Raises AuditFailed."""
    path = directory / "beginning"
    if not path.exists():
        return None
    body = read_json(path)
    try:
        above = frozenset(integer(task) for task in reading.items(reading.field(body, "above")))
        begun = dict(_begun(one) for one in reading.items(body.get("begun", [])))
        checkpoint, low = reading.text(reading.field(body, "checkpoint")), integer(reading.field(body, "low"))
        return Beginning(checkpoint, low, above, slots_of(body), begun)
    except ValueError as error:
        raise AuditFailed(
            f"{path.name}: checkpoint, low, above, begun or slots is missing or can't be: {error}"
        ) from None


def read_earlier(directory: Path, manifest: Manifest) -> Earlier | None:
    """Read from where a synchronous job continued, None if it began anew. Raises AuditFailed."""
    path = directory / "beginning"
    if not path.exists():
        return None
    body = read_json(path)
    try:
        last = manifest.num_tasks - 1
        done = {integer(task, most=last) for task in reading.items(reading.field(body, "done"))}
        begun = dict(_begun(one) for one in reading.items(reading.field(body, "begun")))
        parts = {
            **{integer(task, most=last): chunks for task, chunks in begun.items()},
            **dict.fromkeys(done, 0),
        }
        chunks, records = Seen(), 0
        for task, first in parts.items():
            for chunk in range(
                manifest.chunks_per_task if task in done else min(first, manifest.chunks_per_task)
            ):
                number, count = manifest.chunk(task, chunk)
                if count:
                    chunks.add(number)
                    records += count
        return Earlier(
            reading.text(reading.field(body, "checkpoint")),
            Step(integer(reading.field(body, "step"))),
            integer(reading.field(body, "epoch"), most=MOST_EPOCHS),
            len(done),
            chunks,
            records,
        )
    except ValueError as error:
        raise AuditFailed(
            f"{path.name}: checkpoint, step, epoch, done or begun is missing or can't be: {error}"
        ) from None


def slots_of(body: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Return of each slot the pushes and their sum, as master's files have them. Raises ValueError."""
    return dict(_slot(one) for one in reading.items(reading.field(body, "slots")))


def _slot(body: object) -> tuple[int, tuple[int, int]]:
    slot, pushes, total = reading.items(body, 3)
    if len(reading.text(total)) != _SUM_DIGITS or total.strip("0123456789abcdef"):
        raise ValueError(f"expected a sum of {_SUM_DIGITS} hexadecimal digits, received {total[:40]!r}")
    return integer(slot), (integer(pushes), int(total, 16))


def _shard(body: object) -> tuple[str, int, int]:
    name, start, count = reading.items(body, 3)
    return reading.text(name), integer(start), integer(count)


def _begun(body: object) -> tuple[int, int]:
    task, chunks = reading.items(body, 2)
    return integer(task), integer(chunks)


# ------------------------------------------------------------------ what there was to train


class Seen:
    """Which chunks of an epoch were seen; its memory follows the lines that there are, and not a number of chunks that is only said."""

    def __init__(self) -> None:
        """Begin with none."""
        self._pages: dict[int, bytearray] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        page = self._pages.get(number // _PAGE)
        return page is not None and bool(page[number % _PAGE])

    def __iter__(self) -> Iterator[int]:
        """Yield their numbers, ascending."""
        for number, page in sorted(self._pages.items()):
            for at, here in enumerate(page):
                if here:
                    yield number * _PAGE + at

    def copy(self) -> Seen:
        """Return the same chunks, to which others can be added."""
        same = Seen()
        same._pages = {number: bytearray(page) for number, page in self._pages.items()}
        same._count = self._count
        return same

    def add(self, number: int) -> None:
        """Add a chunk."""
        page = self._pages.setdefault(number // _PAGE, bytearray(_PAGE))
        self._count += not page[number % _PAGE]
        page[number % _PAGE] = 1

    def first_missing(self, end: int) -> int:
        """Return the first chunk before `end` that is not there, -1 if all are."""
        if self._count == end:
            return -1
        at = 0
        while (page := self._pages.get(at)) is not None and (gap := page.find(0)) < 0:
            at += 1
        return at * _PAGE + (0 if page is None else gap)


class Manifest:
    """The job's chunks, derived anew from shards and sizes alone."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int, int]],
        records_per_task: int,
        minibatch_size: int,
        num_epochs: int,
        has_servers: bool,
    ) -> None:
        self.shards = [shard for shard in shards if shard[2]]
        self.records_per_task = records_per_task
        self.minibatch_size = minibatch_size
        self.num_epochs = num_epochs
        self.has_servers = has_servers
        self.num_records = sum(count for _, _, count in self.shards)
        self.chunks_per_task = -(-records_per_task // minibatch_size)
        self._first_task = list(
            accumulate((-(-count // records_per_task) for _, _, count in self.shards), initial=0)
        )
        self._first_chunk = list(
            accumulate((self._chunks_of(count) for _, _, count in self.shards), initial=0)
        )
        self.num_tasks = self._first_task[-1]
        self.num_chunks = self._first_chunk[-1]

    def _chunks_of(self, records: int) -> int:
        whole, rest = divmod(records, self.records_per_task)
        return whole * self.chunks_per_task - (-rest // self.minibatch_size)

    def chunk(self, task: int, chunk: int) -> tuple[int, int]:
        """Return (number of the chunk in its epoch, its records); the records are 0 beyond the end of a short task."""
        shard = self._shard_of(task)
        inside = task - self._first_task[shard]
        left = min(self.records_per_task, self.shards[shard][2] - inside * self.records_per_task)
        records = max(0, min(self.minibatch_size, left - chunk * self.minibatch_size))
        return self._first_chunk[shard] + inside * self.chunks_per_task + chunk, records

    def touched(self, seen: Seen) -> tuple[int, int, int]:
        """Return how many tasks of an epoch have any of their chunks in `seen`, the records of these, and the first chunk that these lack,
        -1 if there is none.
        """
        chunks: dict[int, int] = {}
        for number in seen:
            task = self._task_of(number)
            chunks[task] = chunks.get(task, 0) + 1
        records, missing = 0, -1
        for task in sorted(chunks):
            first = self.chunk(task, 0)[0]
            end = self.chunk(task + 1, 0)[0] if task + 1 < self.num_tasks else self.num_chunks
            shard = self._shard_of(task)
            inside = (task - self._first_task[shard]) * self.records_per_task
            records += min(self.records_per_task, self.shards[shard][2] - inside)
            if missing < 0 and chunks[task] < end - first:
                missing = next(number for number in range(first, end) if number not in seen)
        return len(chunks), records, missing

    def _task_of(self, number: int) -> int:
        """Return the task that a chunk of an epoch is of."""
        shard = bisect_right(self._first_chunk, number) - 1
        return self._first_task[shard] + (number - self._first_chunk[shard]) // self.chunks_per_task

    def _shard_of(self, task: int) -> int:
        return bisect_right(self._first_task, task) - 1

    def describe(self, number: int) -> str:
        """Name a chunk of an epoch for people, with its records."""
        shard = bisect_right(self._first_chunk, number) - 1
        inside, chunk = divmod(number - self._first_chunk[shard], self.chunks_per_task)
        name, start, _ = self.shards[shard]
        task = self._first_task[shard] + inside
        _, records = self.chunk(task, chunk)
        first = start + inside * self.records_per_task
        end = first + min(self.records_per_task, self.shards[shard][2] - inside * self.records_per_task)
        # which records of the task make the chunk is the ledger's secret (it permutes them), the range is the task's
        return f"task {task}, chunk {chunk} ({count_of(records, 'record')} of records {first} to {end - 1} of {name})"


def epochs_of(
    manifest: Manifest,
    finished: Finished | None,
    seen: dict[int, Seen],
    records_of_epoch: dict[int, int],
    *,
    in_order: bool,
    beginning: Beginning | None = None,
    earlier: Earlier | None = None,
) -> tuple[EpochReport, ...]:
    """Check that every epoch that must be whole is whole: all of a complete job, or all but the last that was begun if they go in order.

    Of a job with servers that continued from a checkpoint, as many tasks are left out as that has; which these are, the checkpoint's
    numbers do not say. Of a synchronous job, `seen` has what was trained `earlier` of the epoch in which it continued, too.
    """
    left_out: dict[int, int] = {}
    began = 0 if earlier is None else earlier.epoch
    if earlier is not None:
        left_out = {**dict.fromkeys(range(began), manifest.num_records), began: earlier.records}

    def before(epoch: int) -> int:
        if earlier is not None:
            return manifest.num_tasks if epoch < began else earlier.done if epoch == began else 0
        first = epoch * manifest.num_tasks
        return 0 if beginning is None else beginning.tasks(first, first + manifest.num_tasks)

    if finished is not None and finished.complete:
        if not manifest.num_epochs:
            raise AuditFailed("finished: says that the data was used up, but the job has no last epoch")
        begun = manifest.num_epochs
        whole = begun
    else:
        begun = max(seen, default=-1) + 1
        whole = begun - 1 if in_order else 0
    for epoch in range(began, whole):
        chunks = seen.get(epoch, Seen())
        if beginning is None:
            missing = chunks.first_missing(manifest.num_chunks)
        else:
            trained, records, missing = manifest.touched(chunks)
            tasks, left_out[epoch] = manifest.num_tasks - trained, manifest.num_records - records
            if missing < 0 and tasks != before(epoch):
                raise AuditFailed(
                    f"{tasks} tasks of epoch {epoch + 1} were not trained, and {before(epoch)} were done at the checkpoint"
                )
        if missing >= 0:
            raise AuditFailed(f"never trained in epoch {epoch + 1}: {manifest.describe(missing)}")
    return tuple(
        EpochReport(
            epoch=epoch,
            expected=manifest.num_records - left_out.get(epoch, 0),
            counted=records_of_epoch.get(epoch, 0),
            chunks=len(seen.get(epoch, ())) - (len(earlier.chunks) if earlier and epoch == began else 0),
            before=before(epoch),
        )
        for epoch in range(begun)
    )
