"""The proof for a job with parameter servers: what each slot has applied is what the workers' lines add up to, each chunk taken once.

A chunk may be pushed by several workers, or again and again: its lines are equal then, and count once. A slot that had applied it twice,
or never, would have another sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.audit.records import (
    CHUNKS,
    MOST_EPOCHS,
    Beginning,
    File,
    Finished,
    Manifest,
    Seen,
    epochs_of,
    read_beginning,
    read_json,
    sizes_of,
    slots_of,
)
from elasticdl.audit.report import Report
from elasticdl.errors import AuditFailed

_GOLDEN = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 64) - 1
_SLOTS = 1 << 16
_SUMS = 1 << 128


@dataclass(slots=True)
class _Chunk:
    """What all lines of one chunk say, and whether one of them counts.

    Attributes:
        epoch: its epoch.
        task: its task, in the order of the shards.
        records: of its range.
        bad: of these, corrupt ones.
        slots: set of the slots that its gradient goes to.
        counts: whether its gradient was a number in an attempt; else it changes nothing.
    """

    epoch: int
    task: int
    records: int
    bad: int
    slots: int
    counts: bool = field(compare=False)


def prove(directory: Path, manifest: Manifest, finished: Finished | None) -> Report:
    """Check the records of a job with parameter servers. Raises AuditFailed."""
    files = [File(directory / name, size) for name, size in sorted(sizes_of(directory).items())]
    chunks: dict[tuple[int, int], _Chunk] = {}
    beginning = read_beginning(directory)
    lines = 0
    for file in files:
        for entry in file.entries():
            if entry.kind not in CHUNKS:
                raise file.altered(entry.line, "a line of a job without parameter servers")
            number, place, *facts = entry.numbers
            chunk = _Chunk(facts[0], facts[1], facts[2], facts[3], entry.slots, entry.kind == b"chunk")
            _check(manifest, file, entry.line, number, place, chunk)
            if beginning is not None and beginning.has(number):
                raise file.altered(
                    entry.line, f"task {number} was done before, at the checkpoint {beginning.checkpoint}"
                )
            lines += 1
            known = chunks.setdefault((number, place), chunk)
            if known != chunk:
                raise file.altered(
                    entry.line,
                    f"chunk {place} of task {number} is said to be another one elsewhere: feed gives other ids each time, or it was edited",
                )
            known.counts |= chunk.counts
    _check_numbers(chunks)
    slots = 0
    if finished is not None:
        slots = _check_accounts(directory, chunks, beginning, complete=finished.complete)
    return _report(directory, manifest, finished, files, chunks, lines, slots, beginning)


def _check(manifest: Manifest, file: File, line: int, number: int, place: int, chunk: _Chunk) -> None:
    if chunk.task >= manifest.num_tasks or number // max(1, manifest.num_tasks) != chunk.epoch:
        raise file.altered(
            line, f"there is no task {chunk.task} in epoch {chunk.epoch + 1} with number {number}"
        )
    if chunk.epoch >= (manifest.num_epochs or MOST_EPOCHS):
        raise file.altered(line, f"there is no epoch {chunk.epoch + 1}")
    _, expected = manifest.chunk(chunk.task, place)
    if chunk.records != expected or not expected:
        raise file.altered(
            line, f"chunk {place} of task {chunk.task} has {expected} records, not {chunk.records}"
        )
    if chunk.bad > chunk.records:
        raise file.altered(line, f"{chunk.bad} of {chunk.records} records are said to be corrupt")


def _check_numbers(chunks: dict[tuple[int, int], _Chunk]) -> None:
    """A number belongs to one task of one epoch, and the other way about: else one task would be trained under two stamps."""
    task_of: dict[int, tuple[int, int]] = {}
    number_of: dict[tuple[int, int], int] = {}
    for (number, _), chunk in chunks.items():
        task = chunk.epoch, chunk.task
        if task_of.setdefault(number, task) != task or number_of.setdefault(task, number) != number:
            raise AuditFailed(
                f"task {chunk.task} of epoch {chunk.epoch + 1} is number {number_of[task]} in one line and {number} in another"
            )


def _check_accounts(
    directory: Path,
    chunks: dict[tuple[int, int], _Chunk],
    beginning: Beginning | None,
    *,
    complete: bool,
) -> int:
    """Compare what the slots have applied with the lines, and with what they had at the beginning; return how many slots there are."""
    path = directory / "accounts"
    if not path.is_file():
        raise AuditFailed(f"{path.name}: missing file; without it nobody knows what the servers have applied")
    try:
        told = slots_of(read_json(path))
    except ValueError as error:
        raise AuditFailed(f"{path.name}: slots are missing or can't be: {error}") from None
    if not told or len(told) > _SLOTS or sorted(told) != list(range(len(told))):
        raise AuditFailed(f"{path.name}: not every slot is there once")
    pushes, totals = _add_up(chunks, len(told))
    before = dict.fromkeys(told, (0, 0)) if beginning is None else beginning.slots
    if before.keys() != told.keys():
        raise AuditFailed(f"{path.name} has {len(told)} slots, and at the beginning there were {len(before)}")
    for slot, (all_of_them, sum_of_all) in told.items():
        count, total = all_of_them - before[slot][0], (sum_of_all - before[slot][1]) % _SUMS
        if (count, total) == (pushes[slot], totals[slot]):
            continue
        # A worker that died in a job that was stopped may have written a line, and no part or only some of its push arrived.
        if not complete and count < pushes[slot]:
            continue
        raise AuditFailed(
            f"slot {slot} has applied {count:,} pushes with the sum {total:032x}; the files tell of {pushes[slot]:,} with the sum "
            f"{totals[slot]:032x}: a chunk was applied twice or never, or a file is missing"
        )
    return len(told)


def _add_up(chunks: dict[tuple[int, int], _Chunk], slots: int) -> tuple[list[int], list[int]]:
    """Return of each slot how many chunks go to it, and the sum of their stamps' hashes."""
    import numpy as np

    width = -(-slots // 8)
    counts = np.zeros(width * 8, np.int64)
    low, high = np.zeros(width * 8, np.uint64), np.zeros(width * 8, np.uint64)
    for (number, place), chunk in chunks.items():
        if chunk.slots >> slots:
            raise AuditFailed(
                f"chunk {place} of task {number} goes to slots beyond the last one, {slots - 1}"
            )
        touched: Any = np.unpackbits(
            np.frombuffer(chunk.slots.to_bytes(width, "little"), np.uint8), bitorder="little"
        ).astype(bool)
        first, second = _hash(number, place)
        counts[touched] += 1
        before = low[touched]
        after = before + np.uint64(first)
        low[touched] = after
        high[touched] += np.uint64(second) + (after < before).astype(np.uint64)
    totals = [(int(second) << 64) | int(first) for first, second in zip(low, high, strict=True)]
    return counts.tolist(), totals


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return x ^ (x >> 31)


def _hash(number: int, chunk: int) -> tuple[int, int]:
    """Return the lower and the higher half of a stamp's hash."""
    first = _mix(_mix((number + _GOLDEN) & _MASK) ^ chunk)
    return first, _mix((first + _GOLDEN) & _MASK)


def _report(
    directory: Path,
    manifest: Manifest,
    finished: Finished | None,
    files: list[File],
    chunks: dict[tuple[int, int], _Chunk],
    lines: int,
    slots: int,
    beginning: Beginning | None,
) -> Report:
    seen: dict[int, Seen] = {}
    records: dict[int, int] = {}
    bad = idle = idle_chunks = held = 0
    for (task, place), chunk in chunks.items():
        if beginning is not None and beginning.held(task, place):
            held += chunk.records
        number, _ = manifest.chunk(chunk.task, place)
        seen.setdefault(chunk.epoch, Seen()).add(number)
        records[chunk.epoch] = records.get(chunk.epoch, 0) + chunk.records
        bad += chunk.bad
        if not chunk.counts:
            idle_chunks += chunk.records > chunk.bad
            idle += chunk.records - chunk.bad
    complete = finished is not None and finished.complete
    return Report(
        directory=directory,
        finished=finished is not None,
        complete=complete,
        steps=len(chunks),
        members=len(files),
        views=0,
        epochs=epochs_of(manifest, finished, seen, records, in_order=False, beginning=beginning),
        redone_steps=lines - len(chunks),
        discarded_chunks=0,
        discarded_records=0,
        bad_records=bad,
        idle_steps=idle_chunks,
        idle_records=idle,
        slots=slots,
        cut_files=tuple(file.path.name for file in files if file.cut),
        checkpoint="" if beginning is None else beginning.checkpoint,
        held_records=held,
    )
