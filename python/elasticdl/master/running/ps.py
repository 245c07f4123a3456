"""The runner of the master of a job with parameter servers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Any

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.protocol.messages import MemberMessage
from elasticdl.control.protocol.psmessages import Settled, TaskDone
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.order import dealing_of, tasks_of
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.master.core import auditmark
from elasticdl.master.core import events as machine_events
from elasticdl.master.core.records import FinishedRecord, Record, ResumedRecord, SavedRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.ps import resuming
from elasticdl.master.ps.machine import BATCH_SECONDS, PsMaster, Settings
from elasticdl.master.reporting.psstatusview import PsStatusView
from elasticdl.master.running.runner import Runner, times_of
from elasticdl.spec.jobspec import JobSpec


class PsRunner(Runner):
    """One life of the master of a job with parameter servers."""

    _machine: PsMaster
    _tick_seconds = BATCH_SECONDS / 2
    _status_seconds = 0.5
    _checkpoint: resuming.Checkpoint | None
    """From which the job continues; None in later lives of the master, which find that in the journal."""
    _unaudited: machine_events.Append | None = None
    """The job's end, which is journalled once the audit has what servers have applied."""

    def _make_machine(self) -> PsMaster:
        """Raises BadInput for a checkpoint that the job can't go on from."""
        spec = self._spec
        self._checkpoint = None
        highest = 0
        if not any(isinstance(record, ResumedRecord) for record in self._read[0]):
            self._checkpoint = resuming.open_checkpoint(spec)
            if self._checkpoint is not None or not self._read[1]:  # later lives find this job's own there
                highest = resuming.highest_number(spec, self._checkpoint)
        wanted = settings(spec, self._place.snapshots(spec), self._checkpoint, highest)
        return PsMaster(wanted)

    def _resume_history(self) -> None:
        self._tell_figures()

    def _hear(self, connection: int, message: MemberMessage) -> None:
        self._handle(machine_events.Heard(connection, message))
        if isinstance(message, Settled | TaskDone):
            self._changed = True

    def _tell_figures(self) -> None:
        machine = self._machine
        if machine.order is not None:
            self._event_history.stand(machine.order.epoch(machine.leases.low))
            self._event_history.step = machine.steps_done  # a roll-back takes some away
            self._event_history.progress(
                time.monotonic(), machine.steps_done, machine.records_done, machine.loss
            )

    def _is_ready(self, name: str) -> bool:
        machine = self._machine
        return name in machine.members or any(one.name == name for one in machine.journal.servers.values())

    def _lives_of(self, name: str) -> Collection[MemberId]:
        member = self._machine.members.get(name)
        return () if member is None else (member,)

    def _leaves_when_told(self, name: ProcessName) -> bool:
        return any(server.name == str(name) for server in self._machine.journal.servers.values())

    def _after_process(self) -> None:
        """Say nothing more: nobody's end holds a job up for long."""

    def _moment(self) -> Hashable:
        machine = self._machine
        copies = [copy.hands_over for copy in machine.copies.values()]
        under_way = any(copies), not all(copies), machine.cut
        return len(machine.seen), len(machine.journal.servers), bool(machine.journal.entries), under_way

    def _after_record(self, record: Record) -> None:
        if isinstance(record, SavedRecord):
            # A volume that does not answer must not hold up the master.
            directory = Path(record.path).parent.parent
            kept = self._spec.keep_checkpoint_max if self._spec.checkpoint_dir else 1
            arguments = (directory, kept, record.number)
            threading.Thread(
                target=checkpoints.remove_older, args=arguments, name="snapshots", daemon=True
            ).start()

    def _carry_out(
        self, instruction: machine_events.Instruction, events: deque[machine_events.Event]
    ) -> None:
        if isinstance(instruction, machine_events.Append) and isinstance(instruction.record, FinishedRecord):
            # Before the record: a master that comes later can't ask servers that have ended.
            why = self._write_accounts()
            if why:
                if self._unaudited is None:
                    self._tell(
                        EventKind.NOTE,
                        f"--audit: {self._spec.audit} can't be written ({why}): the job ends once it can",
                    )
                self._unaudited = instruction
                return
            self._unaudited = None
        if isinstance(instruction, machine_events.Append) and isinstance(instruction.record, ResumedRecord):
            events.extend(self._write_beginning(instruction.record))
        if isinstance(instruction, machine_events.Announce) and instruction.kind in (
            EventKind.JOINED,
            EventKind.LEAVING,
        ):
            name = process_name(instruction.worker)
            joined = instruction.kind == EventKind.JOINED
            self._direct(replicas.Joined(name) if joined else replicas.Leaving(name), name.role)
        super()._carry_out(instruction, events)

    def _tick(self) -> None:
        if self._unaudited is not None:
            self._carry_out(self._unaudited, deque())
        super()._tick()

    def _write_accounts(self) -> str:
        """Return what was in the way, if anything was."""
        if not self._spec.audit:
            return ""
        accounts = sorted(self._machine.accounts.values())
        slots = [(one.slot, one.pushes, one.sum) for one in accounts]
        try:
            auditmark.write_accounts(Path(self._spec.audit), slots)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _write_beginning(self, record: ResumedRecord) -> list[machine_events.GiveUp]:
        """Write for the auditor what slots have applied before this job."""
        if not self._spec.audit:
            return []
        assert self._checkpoint is not None, "the master that has read it has journalled it"
        sections = [section for _, section in self._checkpoint.manifest.sections]
        try:
            auditmark.write_beginning(
                Path(self._spec.audit),
                low=record.position.low,
                above=record.position.above,
                slots=[(one.slot, one.pushes, one.sum) for one in sections],
                checkpoint=record.path,
                begun=self._checkpoint.manifest.begun if record.renumbered is None else (),
            )
        except OSError as error:
            text = f"--audit: {self._spec.audit} can't be written: {error.strerror}"
            return [machine_events.GiveUp(text, "bad-input")]
        return []

    def _clean_snapshots(self) -> None:
        if self._spec.checkpoint_dir:
            checkpoints.remove_drafts(Path(self._spec.checkpoint_dir))
        else:
            super()._clean_snapshots()

    def _status(self, now: float) -> JobStatus:
        self._tell_figures()
        servers = self._forces[Role.PS]
        view = PsStatusView(
            self._spec,
            self._machine,
            self._event_history,
            (self._force, servers),
            self._processes,
        )
        return view.status(self._place.name, now)

    def _complete_audit(self, record: FinishedRecord) -> None:
        auditmark.write_finished(
            Path(self._spec.audit),
            view=record.view,
            step=record.state.step,
            state_view=record.state.view,
            complete=self._machine.has_used_all_data,
        )

    def _figures(self) -> dict[str, Any]:
        self._tell_figures()
        machine = self._machine
        workers = [name for name in self._event_history.joined if process_name(name).role is Role.WORKER]
        resumed, saved = machine.journal.resumed, machine.journal.saved
        figures: dict[str, Any] = {}
        if resumed is not None and machine.order is not None:
            figures["resumed_from"] = str(Path(resumed.path).parent)
            order, done = machine.order, resumed.position
            self._event_history.records_before = order.records_before(done.low) + sum(
                map(order.records, done.above)
            )
        if self._spec.checkpoint_dir and saved is not None:
            figures["checkpoint"] = str(Path(saved[0].path).parent)
        if self._spec.checkpoint_dir:
            figures["checkpoints_given_up"] = self._event_history.unsaved
        return {
            **figures,
            "joined": len(workers),
            "servers": {
                "joined": int(machine.journal.next_server),
                **self._event_history.servers,
                "at_the_end": len(machine.journal.servers),
            },
            "roll_backs": machine.journal.roll_back - (0 if resumed is None else resumed.roll_back),
        }


def settings(
    spec: JobSpec, snapshots: Path | None, checkpoint: resuming.Checkpoint | None, highest: int
) -> Settings:
    """Return what the machine takes from the job's settings.

    Args:
        spec: the settings.
        snapshots: where snapshots lie, None if nowhere.
        checkpoint: from which the job continues.
        highest: number of a checkpoint that there is.
    """

    def order(shards: tuple[Shard, ...]) -> TaskOrder:
        return tasks_of(spec, shards)

    def resume(shards: tuple[Shard, ...]) -> ResumedRecord:
        assert checkpoint is not None, "asked for if there is one"
        return resuming.resume(checkpoint, order(shards), dealing_of(spec, shards), highest)

    def plan(shards: tuple[Shard, ...]) -> TaskOrder:
        if checkpoint is not None:
            resume(shards)  # refused before anything is journalled
        return order(shards)

    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=plan,
        output=Path(spec.output) if spec.output else None,
        times=times_of(spec),
        servers=spec.num_ps_pods,
        replicas=spec.replicas,
        snapshots="" if snapshots is None else str(snapshots),
        checkpoint_steps=spec.checkpoint_steps,
        lasting=bool(spec.checkpoint_dir),
        resume=None if checkpoint is None else resume,
        restore=spec.ps_restore,
        accumulates=spec.accumulates,
    )
