"""What people see at one moment of a job that evaluates or predicts, worked out from all that its master knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elasticdl.control.protocol.status import JobStatus, WorkerStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.processview import fixed_state, process_statuses, waits_for_storage
from elasticdl.master.tasking.machine import TaskMaster
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class TaskStatusView:
    """One moment of a job.

    Attributes:
        spec: the job's settings.
        machine: the master's state.
        history: what has happened.
        force: which workers should run.
        processes: which do.
    """

    spec: JobSpec
    machine: TaskMaster
    history: EventHistory
    force: ReplicaSet
    processes: Processes

    def status(self, job_name: str, now: float) -> JobStatus:
        """Return what `elasticdl status` shows at time `now` (seconds, the master's clock)."""
        machine, history = self.machine, self.history
        state, reason = self._state(now)
        total = 0 if machine.plan is None else machine.plan.num_records
        rate = history.rate(now)
        return JobStatus(
            job_name=job_name,
            state=state,
            reason=reason,
            view=0,
            step=0,
            epoch=0,
            num_epochs=1,
            done=history.records / total if total else None,
            loss=None,
            records=history.records,
            records_per_second=rate,
            seconds_left=(total - history.records) / rate if rate and total else None,
            wanted_workers=self.force.wanted,
            workers=tuple(self._workers(now)),
        )

    @property
    def _doing(self) -> str:
        return {"evaluated": "evaluating", "processed": "processing"}.get(
            self.machine.done_word, "predicting"
        )

    def _state(self, now: float) -> tuple[str, str]:
        journal, machine = self.machine.journal, self.machine
        if (fixed := fixed_state(now, machine)) is not None:
            return fixed
        if journal.stopping is not None:
            return "stopping", journal.stopping
        # While rows are loaded the others have nothing to do.
        at_work = len(machine.liveness.seen) if machine.loader is None else 1
        if (waits := waits_for_storage(self.history, at_work)) is not None:
            return waits
        if machine.plan is None:
            return "starting", "the data is being opened"
        if not machine.liveness.seen:
            return "starting", "workers are being started"
        if machine.loader is not None:
            return self._doing, f"all tasks are done, and are loaded into {machine.settings.table}"
        return self._doing, f"{machine.tasks_done:,} of {machine.plan.num_tasks:,} tasks are done"

    def _workers(self, now: float) -> Iterator[WorkerStatus]:
        members = {seen.name: member for member, seen in self.machine.liveness.seen.items()}
        start_seconds = self.spec.start_seconds
        return process_statuses(now, [self.force], self.processes, members, self._state_of, start_seconds)

    def _state_of(self, member: MemberId) -> str:
        return "draining" if self.machine.liveness.seen[member].leaving else self._doing
