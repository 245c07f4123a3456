"""Program errors, and which of them fails the job; after any other one the worker is started once more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elasticdl.control.protocol.messages import ProgramFailed
from elasticdl.master.core.records import ErrorRecord, FailedRecord, Journal

_FOR_ALL = ("bad-input", "nan", "storage")
"""Kinds with which nobody else would have more success: the others see the same data and numbers, or ask the same server."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A program error that waits for its record or its answer; `heard_at`: when this master heard of it first."""

    name: str
    error: ProgramFailed
    heard_at: float


def next_record(
    failures: Iterable[Failure],
    journal: Journal,
    relaunches: int,
    has_committed: Callable[[], bool],
    first: str,
    now: float,
    patience: float,
) -> FailedRecord | ErrorRecord | None:
    """Return the record of the first failure that has none (D10: a program error is a record before it is an answer).

    Args:
        failures: program errors.
        journal: what is journalled.
        relaunches: program errors per worker index that do not fail the job.
        has_committed: tells whether there is a first result, as a step that changed the model.
        first: which that is, for people: "the first step was committed".
        now: the time, in seconds of the master's clock.
        patience: seconds in which others may say yet that there is a first result; what depends on that waits.
    """
    for failure in failures:
        if any(record.worker == failure.name for record in journal.errors):
            continue
        may_wait = failure.error.kind not in _FOR_ALL and now - failure.heard_at < patience
        if may_wait and not has_committed():
            continue
        reason = _fails_job(failure, journal, relaunches, has_committed, first)
        if reason is not None:
            return FailedRecord(reason, failure.error.kind, failure.name, failure.error.traceback)
        return ErrorRecord(failure.name, failure.error.signature)
    return None


def _fails_job(
    failure: Failure, journal: Journal, relaunches: int, has_committed: Callable[[], bool], first: str
) -> str | None:
    """Return why a program error fails the job, or None if the worker is started once more."""
    error, who = failure.error, failure.name
    what = _first_line(error.traceback) or error.signature
    if error.kind == "bad-input":
        return f"{who}: {what}"
    if error.kind in _FOR_ALL:
        return what
    # Who could not write it, and how often, does not matter to the person who has to make room.
    unwritable = what if error.kind == "unwritable" else ""
    if not has_committed():
        return unwritable or f"{who} failed before {first}: {what}"
    before = next((r.worker for r in journal.errors if r.signature == error.signature), None)
    if before is not None:
        return unwritable or f"{who} failed with the error that {before} had before: {what}"
    index = _worker_index(who)
    errors = sum(_worker_index(record.worker) == index for record in journal.errors)
    if errors >= relaunches:
        others = f", after other program errors of worker {index} ({errors})" if errors else ""
        return unwritable or f"{who} failed{others}: {what}"
    return None


def _first_line(text: str) -> str:
    """Return the first line of a text that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _worker_index(name: str) -> str:
    """Return the index of a worker, `3` of `worker-3-2`."""
    return name.rsplit("-", 2)[-2] if name.count("-") >= 2 else name
