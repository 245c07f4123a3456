"""What people see of a job whose processes wait for storage."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.master.reporting.history import EventHistory, HistoryEvent
from elasticdl.master.reporting.processview import waits_for_storage


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
