"""Statuses and events of a job that is not there."""

from __future__ import annotations

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus


class Clock:
    """Seconds since the Unix epoch, as a test says."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def status(
    step: int, *, state: str = "training", loss: float | None = 0.5, rate: float | None = 8.0
) -> JobStatus:
    workers = (
        WorkerStatus("worker-0-1", "training", 1, None),
        WorkerStatus("worker-1-1", "starting", 2, None, "for 3 s"),
        WorkerStatus("ps-0-1", "serving", 3, None),
    )
    return JobStatus("job", state, "why", 1, step, 0, 2, 0.25, loss, step * 16, rate, 60.0, 2, workers, 1)


def event(
    time: float,
    kind: EventKind,
    worker: str = "",
    text: str = "",
    *,
    step: int = 0,
    seconds: float | None = None,
    values: tuple[tuple[str, float], ...] = (),
) -> JobEvent:
    return JobEvent(time, kind, worker, 0, step, text, seconds, values)
