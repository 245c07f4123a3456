"""What people see of a job whose processes wait: for storage, or for their start."""

from __future__ import annotations

import signal

import pytest

from elasticdl.cluster.cluster import ProcessEnded
from elasticdl.control.protocol.status import EventKind, JobEvent, WorkerStatus
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet, Tick, decide
from elasticdl.master.reporting.history import EventHistory, HistoryEvent
from elasticdl.master.reporting.processview import process_statuses, waits_for_storage


@pytest.mark.parametrize(
    ("waiting", "at_work", "reason"),
    [
        ([], 0, None),
        ([""], 0, "the master is waiting for s3://b"),
        (["worker-0-1"], 2, None),  # the other one trains
        (["worker-0-1", "worker-1-1"], 2, "worker-0-1 is waiting for s3://b"),
    ],
)
def test_a_job_waits_when_all_that_are_at_work_do(
    waiting: list[str], at_work: int, reason: str | None
) -> None:
    history = EventHistory(0.0)
    for name in waiting:
        history.tell(HistoryEvent(JobEvent(1.0, EventKind.WAITING, name, 0, 0, "waiting for s3://b")))
    expected = None if reason is None else ("waiting", reason)
    assert waits_for_storage(history, at_work) == expected


def test_who_waits_after_a_short_life_is_shown() -> None:
    force, _, _ = decide(0.0, ReplicaSet(1, 1), Tick())
    force, _, _ = decide(1.0, force, ProcessEnded(force.running()[0], None, signal.SIGKILL))

    def seen(now: float) -> list[WorkerStatus]:
        return list(process_statuses(now, [force], Processes(), {}, lambda member: "training", 60.0))

    why = "it starts 0.2 s after the end of worker-0-1, which was short-lived"
    assert seen(1.1) == [WorkerStatus("worker-0-2", "delayed", None, None, why)]
    assert seen(1.2) == []
