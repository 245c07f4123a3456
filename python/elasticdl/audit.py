"""The auditor: proves from the members' own records that each record of each epoch was trained exactly once.

It is not part of a job: it reads a directory that a job left behind (or is still writing) and shares no code with the bookkeeping
that it checks, neither the ledger nor the views nor the writers; that is why the format stands here in words, and the writers follow
these words. The proof is about lineage: of each step the history is the highest view that committed it, with the contributions of all
members of that view, also of those that died.

The directory
-------------

``manifest``, written by the master before any member starts, and ``finished``, written by the master after it has journalled the end
of the job, are each one JSON object with a ``checksum``: the CRC-32 (``zlib.crc32``), as eight lower-case hexadecimal digits, of
``json.dumps(body, sort_keys=True, separators=(",", ":"))`` in UTF-8, where ``body`` is the object without ``checksum``.
Both are written beside, synced and renamed. A directory that already holds a manifest belongs to another job: the master refuses it.

``manifest``::

    {"format": 1, "shards": [[name, start, count], …], "seed": 7, "records_per_task": 512, "minibatch_size": 64,
     "num_epochs": 2, "checksum": "…"}

``finished``: the state of the result, the number of the final view, and whether the data was used up (false after an early end)::

    {"format": 1, "view": 9, "step": 120, "state_view": 8, "complete": true, "checksum": "…"}

``NAME-MEMBERID.audit`` (``worker-3-2-0123….audit``), one per member, is text, one line per entry. Fields are separated by one space; the
last one is the line's running checksum: the CRC-32, eight lower-case hexadecimal digits, of all bytes of the line before the space
that precedes the checksum, begun with the checksum of the line before (0 for the first line), as in ``zlib.crc32(text, previous)``::

    elasticdl-audit 1 MEMBERID NAME CRC
    base VIEW STEP STATE_VIEW MEMBERID,MEMBERID,… CRC             the view was installed; it starts from state (STEP, STATE_VIEW)
    contributed VIEW STEP SLOT EPOCH TASK CHUNK RECORDS BAD CRC   before the first byte is given to the ring, one for each chunk
    committed VIEW STEP RECORDS APPLIED CRC                       before the result is applied; RECORDS is the sum in the ring's trailer

TASK is the number of the task in the order of the shards, each cut in tasks of ``records_per_task`` records and a shorter last one (an
empty shard has none); EPOCH and TASK count from 0, as do SLOT and CHUNK. RECORDS of a chunk are the records of its range, BAD of which
were skipped as corrupt. APPLIED is 1, or 0 if the step's loss or gradient was not finite and the step changed nothing. A chunk that is
empty because its task is short may be written with 0 records or left out. Lines are handed to the kernel before what they announce
happens, so that a killed process loses none that counts. A file may end in a line that was cut by its writer's death; it counts for
nothing.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NewType

from elasticdl.errors import AuditFailed, BadInput

FORMAT = 1

_View = NewType("_View", int)
_Step = NewType("_Step", int)

_HEADER = b"elasticdl-audit"
_MAX_DIGITS = 18
"""Longer numbers are no numbers of ours; keeps a strange file from costing quadratic time."""


_MAX_SLOTS = 1 << 20


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What was found of one epoch.

    Attributes:
        epoch: 0, 1, …
        expected: records of the epoch.
        counted: records that were trained, each exactly once.
        chunks: chunks that hold them.
    """

    epoch: int
    expected: int
    counted: int
    chunks: int

    @property
    def complete(self) -> bool:
        """Tell whether the whole epoch was trained."""
        return self.counted == self.expected


@dataclass(frozen=True, slots=True)
class Report:
    """What the audit proved.

    Attributes:
        directory: where the records lie.
        finished: the job has ended with a result; otherwise the report says how far it came.
        complete: every record of every epoch was trained exactly once; false for a job that has not finished or was ended early.
        steps: committed steps that count.
        members: members that left a file.
        views: views that somebody installed.
        epochs: per epoch that was begun.
        redone_steps: counted steps that were tried in more than one view.
        discarded_chunks: contributions that do not count because their step was redone or given up.
        discarded_records: the records in them.
        bad_records: records that were skipped as corrupt, once an epoch each.
        idle_steps: counted steps that changed nothing because loss or gradient was not finite.
        idle_records: the records in them, corrupt ones left out.
        cut_files: names of the files that end in a cut line that does not count.
    """

    directory: Path
    finished: bool
    complete: bool
    steps: int
    members: int
    views: int
    epochs: tuple[EpochReport, ...]
    redone_steps: int
    discarded_chunks: int
    discarded_records: int
    bad_records: int
    idle_steps: int
    idle_records: int
    cut_files: tuple[str, ...]

    @property
    def records(self) -> int:
        """Return the records of all epochs that were dealt with, each exactly once: trained, or skipped for a reason that is counted."""
        return sum(epoch.counted for epoch in self.epochs)

    @property
    def trained(self) -> int:
        """Return the records that changed the model."""
        return self.records - self.bad_records - self.idle_records

    @property
    def statement(self) -> str:
        """Return the result in one sentence."""
        if self.complete:
            all_of_them = f"the {self.records:,} records of {_count(len(self.epochs), 'epoch')}"
            if self.trained == self.records:
                return f"Proven: each of {all_of_them} was trained exactly once."
            return f"Proven: of {all_of_them}, {self.trained:,} were trained, each exactly once, and {self._left_out}."
        how = "the job was ended early" if self.finished else "the job has not finished, or failed"
        left_out = "" if self.trained == self.records else f", and {self._left_out}"
        return f"Proven up to step {self.steps}: {self.trained:,} records were trained, each once in its epoch{left_out} ({how})."

    @property
    def _left_out(self) -> str:
        parts = []
        if self.bad_records:
            parts.append(f"{self.bad_records:,} were skipped as corrupt")
        if self.idle_records:
            parts.append(
                f"{self.idle_records:,} were in {_count(self.idle_steps, 'step')} that changed nothing"
            )
        return " and ".join(parts)

    def __str__(self) -> str:
        lines = []
        for (expected, counted, chunks), group in groupby(
            self.epochs, lambda epoch: (epoch.expected, epoch.counted, epoch.chunks)
        ):
            first, *others = group
            which = (
                f"epochs {first.epoch + 1} to {others[-1].epoch + 1}, each"
                if others
                else f"epoch {first.epoch + 1}"
            )
            lines.append(f"{which}: {counted:,} of {expected:,} records in {_count(chunks, 'chunk')}")
        lines.append(
            f"{_count(self.steps, 'step')} in {_count(self.views, 'view')} by {_count(self.members, 'member')}, "
            f"{self.redone_steps:,} of them in more than one attempt"
        )
        lines.append(
            f"discarded: {_count(self.discarded_chunks, 'contribution')} with {self.discarded_records:,} records, "
            "of attempts that were given up"
        )
        if self.cut_files:
            lines.append(f"last line cut, which does not count: {', '.join(self.cut_files)}")
        lines.append(self.statement)
        return "\n".join(lines)


def audit(directory: Path) -> Report:
    """Check the records that a job left in `directory`.

    A job that still runs may be audited; what its members write meanwhile is left for the next time.

    Raises AuditFailed, naming file and line or the record, if the proof does not hold; BadInput if there is nothing to audit.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    finished = _read_finished(directory)
    # Members of a running job write on. A base line refers to commits, a commit to contributions, each written earlier, so
    # sizes taken in this order see the cause of everything that they see.
    limits = {kind: _sizes(directory) for kind in (b"base", b"committed", b"contributed")}
    files = [_File(directory / name, size) for name, size in sorted(limits[b"contributed"].items())]

    story = _Story()
    for file in files:
        story.read(file, limits)
    history = _history(story, finished)
    _check_members(history, story, {file.member for file in files if file.member}, directory)
    return _count_chunks(directory, manifest, finished, files, story, history)


# ------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class _Base:
    step: _Step
    state_view: _View
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finished:
    view: _View
    step: _Step
    state_view: _View
    complete: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """One whole line whose checksum holds."""

    line: int
    offset: int
    kind: bytes
    numbers: tuple[int, ...]
    members: tuple[str, ...] = ()


_FIELDS = {b"base": 3, b"contributed": 8, b"committed": 4}
"""Numbers per kind of line; `base` has one more field, the members."""


class _File:
    """One member's file up to a size; whole lines are verified each time it is read."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.member: str | None = None
        self.cut = False

    def entries(self) -> Iterator[_Entry]:
        offset = checksum = 0
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            raise AuditFailed(f"{self.path.name}: missing file; it was there a moment ago") from None
        with stream:
            number = 0
            while offset < self.size:
                line = stream.readline(self.size - offset)
                if not line.endswith(b"\n"):
                    self.cut = True
                    return
                number += 1
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

    def _parse(self, text: bytes, line: int, offset: int) -> _Entry:
        kind, *fields = text.split(b" ")
        expected = _FIELDS.get(kind)
        if expected is None:
            raise self.altered(line, f"unknown kind of line {kind.decode('utf-8', 'replace')!r}")
        members: tuple[str, ...] = ()
        if kind == b"base" and fields:
            members = tuple(fields.pop().decode("utf-8", "replace").split(","))
        if len(fields) != expected or not all(
            field.isdigit() and len(field) <= _MAX_DIGITS for field in fields
        ):
            raise self.altered(line, f"{kind.decode()} takes {expected} numbers")
        return _Entry(line, offset, kind, tuple(map(int, fields)), members)


class _Story:
    """What the files say of views and commits."""

    def __init__(self) -> None:
        self.bases: dict[_View, tuple[_Base, str]] = {}
        """Per view its base, and the line that said so."""
        self.installed: dict[_View, set[str]] = {}
        self.commits: dict[_View, array[int]] = {}
        """Per view the trailers' sums of records, of its base's next step and those that follow: a view skips no step."""
        self.idle: dict[_View, set[int]] = {}
        """Per view the steps that changed nothing."""

    def committed(self, view: _View) -> range:
        """Return the steps that somebody committed in a view."""
        first = self.bases[view][0].step + 1
        return range(first, first + len(self.commits.get(view, ())))

    def read(self, file: _File, limits: dict[bytes, dict[str, int]]) -> None:
        """Take in `base` and `committed` lines, and check that the member did one step after the other, in views it had installed."""
        name = file.path.name
        bases_end, commits_end = limits[b"base"].get(name, 0), limits[b"committed"].get(name, 0)
        own: dict[_View, _Base] = {}
        done: dict[_View, int] = {}
        for entry in file.entries():
            where = f"{name}, line {entry.line}"
            view = _View(entry.numbers[0])
            if entry.kind == b"base":
                base = _Base(_Step(entry.numbers[1]), _View(entry.numbers[2]), entry.members)
                if own and view <= max(own):
                    raise AuditFailed(f"{where}: view {view} was installed after view {max(own)}")
                if file.member is None or file.member not in base.members:
                    raise AuditFailed(f"{where}: view {view} does not name this member")
                own[view] = base
                done[view] = base.step
                self.installed.setdefault(view, set()).add(file.member)
                if entry.offset < bases_end:
                    self._base(view, base, where)
                continue
            if view not in own:
                raise AuditFailed(f"{where}: view {view} was never installed by this member")
            step = entry.numbers[1]
            if step != done[view] + 1:
                raise AuditFailed(
                    f"{where}: step {step} in view {view}, where this member had come to step {done[view]}"
                )
            if entry.kind == b"committed":
                done[view] = step
                if entry.offset < commits_end:
                    self._commit(_Step(step), own[view], view, entry.numbers[2:], where)

    def _base(self, view: _View, base: _Base, where: str) -> None:
        other, said = self.bases.setdefault(view, (base, where))
        if other != base:
            raise AuditFailed(f"{where}: view {view} has another content than in {said}")

    def _commit(self, step: _Step, base: _Base, view: _View, said: tuple[int, ...], where: str) -> None:
        records, applied = said
        sums, idle = self.commits.setdefault(view, array("q")), self.idle.setdefault(view, set())
        index = step - base.step - 1
        if index == len(sums):
            sums.append(records)
            if not applied:
                idle.add(step)
        elif sums[index] != records:
            raise AuditFailed(
                f"{where}: the step's records sum up to {records}, another member has {sums[index]}"
            )
        elif applied == (step in idle):
            raise AuditFailed(
                f"{where}: another member has it otherwise, whether step {step} changed the model"
            )


def _sizes(directory: Path) -> dict[str, int]:
    with os.scandir(directory) as found:
        return {
            file.name: file.stat().st_size
            for file in found
            if file.name.endswith(".audit") and file.is_file()
        }


def _read_json(path: Path) -> dict[str, Any]:
    """Read `manifest` or `finished` and check its checksum and format."""
    try:
        body = json.loads(path.read_bytes())
        told = body.pop("checksum")
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise AuditFailed(f"{path.name}: not what the master writes; it was cut or edited") from None
    if told != f"{zlib.crc32(text):08x}":
        raise AuditFailed(f"{path.name}: its checksum does not hold: it was edited")
    if body.get("format") != FORMAT:
        raise AuditFailed(
            f"{path.name}: written in format {body.get('format')!r}; this auditor reads format {FORMAT}"
        )
    return dict(body)


def _read_manifest(directory: Path) -> _Manifest:
    path = directory / "manifest"
    if not path.is_file():
        if directory.is_dir() and _sizes(directory):
            raise AuditFailed(f"{path.name}: missing file; without it nobody knows which records there were")
        raise BadInput(
            f"{directory} holds no audit: there is no file {path.name}. Give the directory that --audit named."
        )
    body = _read_json(path)
    try:
        shards = [(str(name), int(start), int(count)) for name, start, count in body["shards"]]
        sizes = int(body["records_per_task"]), int(body["minibatch_size"]), int(body["num_epochs"])
    except (KeyError, TypeError, ValueError):
        raise AuditFailed(
            f"{path.name}: shards, records_per_task, minibatch_size or num_epochs is missing or no number"
        ) from None
    if sizes[0] < 1 or sizes[1] < 1 or sizes[2] < 0 or any(count < 0 for _, _, count in shards):
        raise AuditFailed(f"{path.name}: sizes and counts can't be negative")
    return _Manifest(shards, *sizes)


def _read_finished(directory: Path) -> _Finished | None:
    path = directory / "finished"
    if not path.exists():
        return None
    body = _read_json(path)
    try:
        return _Finished(
            _View(int(body["view"])),
            _Step(int(body["step"])),
            _View(int(body["state_view"])),
            bool(body["complete"]),
        )
    except (KeyError, TypeError, ValueError):
        raise AuditFailed(
            f"{path.name}: view, step, state_view or complete is missing or no number"
        ) from None


# ------------------------------------------------------------------ what there was to train


class _Manifest:
    """The job's chunks, derived anew from shards and sizes alone."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int, int]],
        records_per_task: int,
        minibatch_size: int,
        num_epochs: int,
    ) -> None:
        self.shards = [shard for shard in shards if shard[2]]
        self.records_per_task = records_per_task
        self.minibatch_size = minibatch_size
        self.num_epochs = num_epochs
        self.num_records = sum(count for _, _, count in self.shards)
        self._chunks_per_task = -(-records_per_task // minibatch_size)
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
        return whole * self._chunks_per_task - (-rest // self.minibatch_size)

    def chunk(self, task: int, chunk: int) -> tuple[int, int]:
        """Return (number of the chunk in its epoch, its records); the records are 0 beyond the end of a short task."""
        shard = bisect_right(self._first_task, task) - 1
        inside = task - self._first_task[shard]
        left = min(self.records_per_task, self.shards[shard][2] - inside * self.records_per_task)
        records = max(0, min(self.minibatch_size, left - chunk * self.minibatch_size))
        return self._first_chunk[shard] + inside * self._chunks_per_task + chunk, records

    def describe(self, number: int) -> str:
        """Name a chunk of an epoch for people, with its records."""
        shard = bisect_right(self._first_chunk, number) - 1
        inside, chunk = divmod(number - self._first_chunk[shard], self._chunks_per_task)
        name, start, _ = self.shards[shard]
        task = self._first_task[shard] + inside
        _, records = self.chunk(task, chunk)
        first = start + inside * self.records_per_task
        end = first + min(self.records_per_task, self.shards[shard][2] - inside * self.records_per_task)
        # which records of the task make the chunk is the ledger's secret (it permutes them), the range is the task's
        return f"task {task}, chunk {chunk} ({_count(records, 'record')} of records {first} to {end - 1} of {name})"


# ------------------------------------------------------------------ which history counts


def _history(story: _Story, finished: _Finished | None) -> list[_View]:
    """Return, for each step that counts, the view in which it does (index 0 is the initial state).

    Walks back from the newest state along the views' bases, and checks that every step on the way has no commit in a higher view.
    """
    if finished is not None:
        step, view = finished.step, finished.state_view
        final = story.bases.get(finished.view)
        if final is not None and (final[0].step, final[0].state_view) != (step, view):
            raise AuditFailed(
                f"finished: the result is step {step} of view {view}, but view {finished.view} starts from step {final[0].step} "
                f"of view {final[0].state_view} ({final[1]})"
            )
    else:
        step, view = _newest(story)
    segments: list[tuple[_Step, _Step, _View]] = []
    while step:
        known = story.bases.get(view)
        if known is None:
            raise AuditFailed(
                f"step {step} counts in view {view}, but no file tells of that view: files are missing or cut"
            )
        base, where = known
        if base.step >= step:
            raise AuditFailed(
                f"{where}: view {view} starts after step {base.step}, but step {step} is said to be of it"
            )
        if base.step and base.state_view >= view:
            raise AuditFailed(
                f"{where}: view {view} starts from a state of view {base.state_view}, which is not before it"
            )
        done = story.committed(view)
        if step not in done:
            raise AuditFailed(
                f"step {max(done.stop, 1)}: no file says that view {view} committed it; a committed line is missing"
            )
        for later in story.bases:
            given_up = range(
                max(base.step + 1, story.committed(later).start), min(step + 1, story.committed(later).stop)
            )
            if later > view and given_up:
                raise AuditFailed(
                    f"step {given_up[0]} counts in view {view}, but the later view {later} committed it too: the lineage is broken"
                )
        segments.append((base.step, step, view))
        step, view = base.step, base.state_view
    history = [_View(0)]
    for before, last, of_view in reversed(segments):
        history += [of_view] * (last - before)
    return history


def _newest(story: _Story) -> tuple[_Step, _View]:
    """Return the newest state of an unfinished job: the last commit of its newest view, or that view's base."""
    if not story.bases:
        return _Step(0), _View(0)
    view = max(story.bases)
    committed = story.committed(view)
    if committed:
        return _Step(committed[-1]), view
    base = story.bases[view][0]
    return base.step, base.state_view


def _check_members(history: list[_View], story: _Story, members: set[str], directory: Path) -> None:
    """Every member of a view that counts has left a file, and its file tells of the view."""
    for view in sorted(set(history[1:])):
        base, where = story.bases[view]
        for member in base.members:
            if member not in members:
                raise AuditFailed(
                    f"missing file: {directory} has none of member {member}, which took part in view {view} ({where})"
                )
            if member not in story.installed[view]:
                raise AuditFailed(
                    f"the file of member {member} is cut where it counts: view {view}, in which it took part, is missing"
                )


# ------------------------------------------------------------------ counting


def _count_chunks(
    directory: Path,
    manifest: _Manifest,
    finished: _Finished | None,
    files: list[_File],
    story: _Story,
    history: list[_View],
) -> Report:
    seen: dict[int, bytearray] = {}
    records_of_epoch: dict[int, int] = {}
    # one entry per step: what a job of a billion records costs here is tens of megabytes
    epoch_of_step = array("q", [-1]) * len(history)
    sums = array("q", [0]) * len(history)
    slots = [0] * len(history)
    redone: set[int] = set()
    discarded_chunks = discarded_records = bad_records = idle_records = 0
    for file in files:
        for entry in file.entries():
            if entry.kind != b"contributed":
                continue
            view, step, slot, epoch, task, chunk, records, bad = entry.numbers
            if task >= manifest.num_tasks or (manifest.num_epochs and epoch >= manifest.num_epochs):
                raise file.altered(entry.line, f"there is no task {task} in epoch {epoch + 1}")
            number, expected = manifest.chunk(task, chunk)
            if records != expected:
                raise file.altered(
                    entry.line, f"chunk {chunk} of task {task} has {expected} records, not {records}"
                )
            if bad > records:
                raise file.altered(entry.line, f"{bad} of {records} records are said to be corrupt")
            if step >= len(history) or history[step] != view:
                discarded_chunks += 1
                discarded_records += records
                if step < len(history):
                    redone.add(step)
                continue
            if epoch_of_step[step] not in (-1, epoch):
                mixed = f"epochs {epoch + 1} and {epoch_of_step[step] + 1}"
                raise file.altered(entry.line, f"step {step} takes records of {mixed}")
            epoch_of_step[step] = epoch
            if slot >= _MAX_SLOTS:
                raise file.altered(entry.line, f"there is no slot {slot}")
            if slots[step] >> slot & 1:
                raise file.altered(entry.line, f"slot {slot} of step {step} was contributed twice")
            slots[step] |= 1 << slot
            sums[step] += records
            bad_records += bad
            if step in story.idle.get(_View(view), ()):
                idle_records += records - bad
            if not records:
                continue
            if epoch not in seen:
                seen[epoch] = bytearray(manifest.num_chunks)
                records_of_epoch[epoch] = 0
            if seen[epoch][number]:
                raise file.altered(
                    entry.line, f"trained twice in epoch {epoch + 1}: {manifest.describe(number)}"
                )
            seen[epoch][number] = 1
            records_of_epoch[epoch] += records
    _check_sums(story, history, sums)
    _check_epoch_order(epoch_of_step)
    epochs = _epochs(manifest, finished, seen, records_of_epoch)
    complete = finished is not None and finished.complete
    return Report(
        directory=directory,
        finished=finished is not None,
        complete=complete,
        steps=len(history) - 1,
        members=len(files),
        views=len(story.bases),
        epochs=epochs,
        redone_steps=len(redone),
        discarded_chunks=discarded_chunks,
        discarded_records=discarded_records,
        bad_records=bad_records,
        idle_steps=sum(step in story.idle.get(view, ()) for step, view in enumerate(history)),
        idle_records=idle_records,
        cut_files=tuple(file.path.name for file in files if file.cut),
    )


def _check_sums(story: _Story, history: list[_View], sums: Sequence[int]) -> None:
    for step in range(1, len(history)):
        view = history[step]
        told = story.commits[view][step - story.bases[view][0].step - 1]
        if told != sums[step]:
            raise AuditFailed(
                f"step {step} of view {view}: the contributions in the files have {sums[step]} records, the step summed {told}; "
                "a contributed line is missing or too many"
            )


def _check_epoch_order(epoch_of_step: Sequence[int]) -> None:
    last = 0
    for step, epoch in enumerate(epoch_of_step):
        if 0 <= epoch < last:
            raise AuditFailed(f"step {step} goes back to epoch {epoch + 1}")
        last = max(last, epoch)


def _epochs(
    manifest: _Manifest,
    finished: _Finished | None,
    seen: dict[int, bytearray],
    records_of_epoch: dict[int, int],
) -> tuple[EpochReport, ...]:
    """Check that every epoch that must be whole is whole: all but the last that was begun, or all of a complete job."""
    if finished is not None and finished.complete:
        if not manifest.num_epochs:
            raise AuditFailed("finished: says that the data was used up, but the job has no last epoch")
        begun = manifest.num_epochs
        whole = begun
    else:
        begun = max(seen, default=-1) + 1
        whole = begun - 1
    for epoch in range(whole):
        missing = seen.get(epoch, bytearray(manifest.num_chunks)).find(0)
        if missing >= 0:
            raise AuditFailed(f"never trained in epoch {epoch + 1}: {manifest.describe(missing)}")
    return tuple(
        EpochReport(
            epoch=epoch,
            expected=manifest.num_records,
            counted=records_of_epoch.get(epoch, 0),
            chunks=seen[epoch].count(1) if epoch in seen else 0,
        )
        for epoch in range(begun)
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
