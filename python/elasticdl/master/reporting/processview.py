"""What people see of a job and its processes, whatever the job does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from elasticdl.control.protocol.status import WorkerStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import FailedRecord, FinishedRecord
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory

_SHOWN_AFTER_END = 10.0
"""Seconds for which a process that has ended is shown."""
_BEFORE = ("pending", "starting")
"""States of a process that does not take part yet."""


def fixed_state(now: float, machine: MasterCore) -> tuple[str, str] | None:
    """Return state and reason of a job that has ended, or whose journal can't be written; None for another one."""
    match machine.journal.terminal:
        case FinishedRecord():
            return "finished", machine.why_finished
        case FailedRecord(reason):
            return "failed", reason
    why = machine.stuck(now)
    return ("waiting", why) if why else None


def waits_for_storage(history: EventHistory, at_work: int) -> tuple[str, str] | None:
    """Return state and reason of a job in which as many processes wait for storage as are at work; None for another one."""
    if not history.waiting or len(history.waiting) < at_work:
        return None
    name, text = next(iter(history.waiting.items()))
    return "waiting", f"{name or 'the master'} is {text}"


def process_statuses(
    now: float,
    forces: Sequence[ReplicaSet],
    processes: Processes,
    members: Mapping[str, MemberId],
    state_of: Callable[[MemberId], str],
    start_seconds: float,
) -> Iterator[WorkerStatus]:
    """Yield all that should run, those that wait for their start, and those that have ended lately.

    Args:
        now: the time, in seconds of the master's clock.
        forces: which processes should run.
        processes: which do.
        members: those that have asked to take part, by name.
        state_of: what one of them does.
        start_seconds: how long a process may take to get ready.
    """
    for force in forces:
        for process in force.running():
            name = str(process)
            member = members.get(name)
            state = "pending" if name in processes.pending else "starting"
            if member is not None:
                state = state_of(member)
            if force.replicas[process.index].retired and state not in _BEFORE:
                state = "draining"
            why = processes.waits_for(now, name, start_seconds) if state in _BEFORE else ""
            yield WorkerStatus(name, state, processes.pids.get(name), member, why)
        for following, why in force.delayed(now):
            yield WorkerStatus(str(following), "delayed", None, None, why)
    for name, at in processes.ended.items():
        if now - at < _SHOWN_AFTER_END:
            yield WorkerStatus(name, "ended", None, members.get(name))
