"""What people see at one moment of a job with parameter servers, worked out from all that its master knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elasticdl.control.protocol.status import JobStatus, WorkerStatus, how_many
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.entry import Entry
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.processview import fixed_state, process_statuses, waits_for_storage
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class PsStatusView:
    """One moment of a job.

    Attributes:
        spec: the job's settings.
        machine: the master's state.
        history: what has happened.
        forces: which workers should run, and which servers.
        processes: which do.
    """

    spec: JobSpec
    machine: PsMaster
    history: EventHistory
    forces: Sequence[ReplicaSet]
    processes: Processes

    def status(self, job_name: str, now: float) -> JobStatus:
        """Return what `elasticdl status` shows at time `now` (seconds, the master's clock)."""
        machine, history = self.machine, self.history
        state, reason = self._state(now)
        cut = machine.snapshots.under_way(machine.journal)
        return JobStatus(
            job_name=job_name,
            state=state,
            reason=reason,
            view=0,
            step=machine.steps_done,
            epoch=history.epoch,
            num_epochs=self.spec.num_epochs,
            done=history.done(machine.work.order),
            loss=history.loss,
            records=machine.work.records_done,
            records_per_second=history.rate(now),
            seconds_left=history.seconds_left(now, machine.work.order),
            wanted_workers=self.forces[0].wanted,
            workers=tuple(self._processes(now)),
            wanted_servers=self.forces[1].wanted,
            slots_alone=self._alone(),
            copies=sum(not copy.hands_over for copy in machine.slots.copies.under_way.values()),
            handovers=sum(copy.hands_over for copy in machine.slots.copies.under_way.values()),
            snapshot=0 if cut is None else cut.number,
        )

    def _state(self, now: float) -> tuple[str, str]:
        journal, machine = self.machine.journal, self.machine
        if (fixed := fixed_state(now, machine)) is not None:
            return fixed
        if journal.stopping is not None:
            return "stopping", journal.stopping
        busy = len(machine.work.leases.held) or len(machine.evaluations.leased)
        if (waits := waits_for_storage(self.history, busy)) is not None:
            return waits
        if journal.shards is None:
            return "starting", "the data is being opened"
        if journal.model is None:
            return "starting", "the first worker builds the model"
        if not journal.entries:
            return "starting", f"{self.machine.wanted_servers} parameter servers are being started"
        gone = {server for server in journal.servers.values() if server.name in machine.gone}
        if len(gone) == len(journal.servers):
            return "waiting", "no parameter server is left; new ones are being started"
        if awaited := machine.liveness.awaited(now, machine):
            names = ", ".join(sorted(journal.servers[number].name for number in awaited))
            return "waiting", (
                f"nobody else has a copy of what {names} holds, and it does not answer; it is given time to wake up before the job goes "
                "back to the last snapshot"
            )
        evaluation = machine.evaluations.evaluation
        if not busy and not machine.ends:
            return self._at_barrier() or ("waiting", "no worker is there; new ones are being started")
        who = how_many(busy, len(journal.servers))
        state = "training"
        if evaluation is not None:
            state = "evaluating"
            parts = f"{len(evaluation.results)} of {evaluation.tasks} parts are done"
            who += f"; step {evaluation.state.step} is evaluated, {parts}"
        slots, alone = len(journal.entries), self._alone()
        # Until then the loss of another server would take some of them along.
        return state, f"{who}; {alone} of {slots} slots have no second copy yet" if alone else who

    def _at_barrier(self) -> tuple[str, str] | None:
        """Return what the job waits for between an evaluation, or an epoch, and the next task (B4, B5); None if it waits for workers."""
        machine = self.machine
        if machine.snapshots.holds_barrier(machine.journal, machine.work):
            return "training", "the best model so far is being written, before training continues"
        is_somebody_there = (
            next(machine.liveness.workers_at_work(machine, lambda name: True), None) is not None
        )
        last = machine.journal.last_barrier
        if is_somebody_there and last is not None and last.task == machine.work.leases.until:
            return "training", f"callbacks run after step {last.state.step}, before training continues"
        return None

    def _alone(self) -> int:
        """Return how many slots the loss of one more server may take along: a server that leaves is as good as lost."""
        if self.spec.replicas == 1:
            return 0
        journal, stay = self.machine.journal, self.machine.liveness.staying(self.machine)

        def is_alone(entry: Entry) -> bool:
            return entry.backup not in stay or entry.primary not in stay

        return sum(map(is_alone, journal.entries)) if any(map(is_alone, journal.pairs)) else 0

    def _processes(self, now: float) -> Iterator[WorkerStatus]:
        members = {seen.name: member for member, seen in self.machine.liveness.seen.items()}
        start_seconds = self.spec.start_seconds
        return process_statuses(now, self.forces, self.processes, members, self._state_of, start_seconds)

    def _state_of(self, member: MemberId) -> str:
        state = self.machine.liveness.state_of(self.machine, member)
        is_open = self.machine.evaluations.evaluation is not None  # at a barrier nothing is trained
        return "evaluating" if state == "training" and is_open else state
