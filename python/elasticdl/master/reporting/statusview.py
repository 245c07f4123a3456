"""What people see of a job at one moment, worked out from all that its master knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from elasticdl.cluster.kubernetes.manifests import DEAD
from elasticdl.control.protocol.status import JobStatus, WorkerStatus
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.processview import fixed_state, process_statuses, waits_for_storage
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class StatusView:
    """One moment of a job.

    Attributes:
        spec: the job's settings.
        machine: the master's state.
        history: what has happened.
        force: which workers should run.
        processes: which do.
    """

    spec: JobSpec
    machine: AllReduceMaster
    history: EventHistory
    force: ReplicaSet
    processes: Processes

    def status(self, job_name: str, now: float) -> JobStatus:
        """Return what `elasticdl status` shows at time `now` (seconds, the master's clock)."""
        machine, history, schedule = self.machine, self.history, self.machine.schedule
        state, reason = self._state(now)
        return JobStatus(
            job_name=job_name,
            state=state,
            reason=reason,
            view=machine.view.id if machine.view else 0,
            step=history.step,
            epoch=history.epoch,
            num_epochs=self.spec.num_epochs if schedule is None else schedule.num_epochs,
            done=history.done(schedule),
            loss=history.loss,
            records=history.records,
            records_per_second=history.rate(now),
            seconds_left=history.seconds_left(now, schedule),
            wanted_workers=self.force.wanted,
            workers=tuple(self._workers(now)),
        )

    def _state(self, now: float) -> tuple[str, str]:
        journal, view = self.machine.journal, self.machine.view
        if (fixed := fixed_state(now, self.machine)) is not None:
            return fixed
        if lost := all_lost(view, self.machine.gone, self.processes.unproven, self.spec):
            return "waiting", lost
        if journal.stopping is not None:
            return "stopping", journal.stopping
        if (waits := waits_for_storage(self.history, 1)) is not None:  # a step needs all members
            return waits
        if view is None:
            return "starting", self._short() or (
                "workers are being started" if journal.shards else "the data is being opened"
            )
        if all(peer.name in self.machine.gone for peer in view.members):
            return "waiting", "no worker is left; new ones are being started"
        if short := self._short():
            return "waiting", short
        evaluation = self.machine.gates.evaluation
        if evaluation is not None and evaluation.state == self.machine.gates.all_at(view):
            done = f"{len(evaluation.results)} of {evaluation.tasks} tasks are done"
            return "evaluating", f"evaluation of step {evaluation.state.step}: {done}"
        return "training", f"last change: {view.reason}"  # which may be long ago

    def _short(self) -> str:
        """Say what a job waits for that has fewer workers than it needs; empty if it has enough."""
        minimum, missing = self.spec.num_workers.minimum, self.machine.missing
        if minimum == 1 or not missing:
            return ""
        return f"{minimum - missing} of the {minimum} workers are there that the job needs to train"

    def _workers(self, now: float) -> Iterator[WorkerStatus]:
        members = {seen.peer.name: member for member, seen in self.machine.liveness.seen.items()}
        start_seconds = self.spec.start_seconds
        return process_statuses(now, [self.force], self.processes, members, self._state_of, start_seconds)

    def _state_of(self, member: MemberId) -> str:
        state = self.machine.liveness.state_of(self.machine, member)
        if state == "healing" and self._has_committed_in_view():
            state = (
                "training"  # a commit waits for all who heal; their next report says that they hold a state
            )
        return "evaluating" if state == "training" and self.machine.gates.evaluates(member) else state

    def _has_committed_in_view(self) -> bool:
        progress, view = self.machine.steps.progress, self.machine.view
        return (
            progress is not None
            and view is not None
            and progress.current == view.id
            and progress.state.step > view.base.step
        )


def all_lost(view: View | None, dead: Collection[str], unproven: Mapping[str, str], spec: JobSpec) -> str:
    """Return what people can do if nobody can say of the members that are left whether they are dead; empty if somebody can."""
    members = () if view is None else view.members
    left = sorted(peer.name for peer in members if peer.name not in dead)
    if not left or any(name not in unproven for name in left):
        return ""
    nodes = sorted({unproven[name] for name in left} - {""})
    gone = [name for name in left if not unproven[name]]
    where, commands = [], []
    if nodes:
        where.append(f"on {' and '.join(nodes)}, of which nothing is heard")
        commands += [
            f"kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            for node in nodes
        ]
    if gone:
        where.append("in pods that were deleted by force")
        commands.append(
            f"kubectl annotate --overwrite job {spec.job_name} --namespace={spec.namespace} {DEAD}={','.join(gone)}"
        )
    who = "all workers" if len(left) == len(members) else "all workers that are not dead"
    return f"{who} are {' or '.join(where)}; they may be alive, so the job waits. If they are dead, say so: {'; '.join(commands)}"
