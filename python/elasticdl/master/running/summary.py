"""What is kept of a job's end: the status word, the exit code, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl.control.protocol.status import INTERRUPT
from elasticdl.master.core.events import End
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import FailedRecord, FinishedRecord
from elasticdl.spec.jobspec import JobKind

NOTHING_TRAINED = "the job was stopped when nothing was trained: no result is written"
NOT_DONE = "the job was stopped before all of its data was done: no result is written"


def why_nothing(kind: JobKind) -> str:
    """Return what is said of a job that was stopped and has no result."""
    return NOTHING_TRAINED if kind is JobKind.TRAIN else NOT_DONE


def outcome(end: End, machine: MasterCore, kind: JobKind) -> End:
    """Return an end as people see it: who asked for it, and whether there is a result."""
    status, code, reason, record = end.status, end.exit_code, end.reason, machine.journal.terminal
    interrupted = INTERRUPT in (machine.journal.stopping, machine.requests.stop)
    if isinstance(record, FinishedRecord) and record.state.step == 0 and kind is JobKind.TRAIN:
        status, code, reason = "failed", 1, f"{NOTHING_TRAINED} ({reason})"
    if interrupted and (isinstance(record, FinishedRecord) or not machine.journal.has_begun):
        status, code = "interrupted", 130
    return End(status, reason, code)


_OF_TRAINING = (
    "epochs",
    "steps",
    "records_trained",
    "records_per_second",
    "redone_steps",
    "idle_steps",
    "recoveries",
    "loss",
    "digest",
)
"""Entries that say nothing of a job that trains nothing."""


def summary(
    job: str,
    kind: JobKind,
    end: End,
    record: FinishedRecord | FailedRecord | None,
    history: Mapping[str, Any],
    facts: Mapping[str, Any],
    figures: Mapping[str, Any],
    outputs: Sequence[str],
) -> dict[str, Any]:
    """Return what is kept of a job that has ended.

    Args:
        job: its name.
        kind: what it does.
        end: its outcome.
        record: its terminal record.
        history: figures of its history.
        facts: what else is known.
        figures: who took part; `joined`: how many workers.
        outputs: where its results are.
    """
    left = dict(figures)
    body: dict[str, Any] = {
        "job": job,
        "status": end.status,
        "reason": end.reason,
        "exit_code": end.exit_code,
    }
    body |= history
    body |= facts
    body["members"] = {"joined": left.pop("joined"), **body["members"]}
    body |= left
    body["metrics"] = {}
    body["outputs"] = list(outputs)
    match record:
        case FinishedRecord():
            if record.state.step == 0:
                body["loss"] = None
            body |= {"steps": record.state.step, "metrics": dict(record.metrics), "digest": record.digest}
        case FailedRecord():
            body |= {"traceback": record.traceback, "failed_worker": record.worker}
    if kind is not JobKind.TRAIN:
        body = {name: value for name, value in body.items() if name in figures or name not in _OF_TRAINING}
    return body
