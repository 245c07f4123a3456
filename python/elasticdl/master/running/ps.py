"""What the runner of the master of a job with parameter servers asks: workers, servers, and snapshots of slots."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.protocol.messages import MemberMessage, TaskResult
from elasticdl.control.protocol.psmessages import Settled, TaskDone
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.order import dealing_of, tasks_of
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.master.core import auditmark
from elasticdl.master.core.events import Announce, GiveUp
from elasticdl.master.core.records import FinishedRecord, Record, ResumedRecord, SavedRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.starting import Stage
from elasticdl.master.ps import resuming
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.reported import BATCH_SECONDS
from elasticdl.master.ps.settings import Settings
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.psstatusview import PsStatusView
from elasticdl.master.running.context import Past
from elasticdl.master.running.metricsums import add_up, result_size
from elasticdl.master.running.strategy import Actions, in_background
from elasticdl.master.running.times import times_of
from elasticdl.spec.jobspec import JobSpec


class PsStrategy:
    """Training with parameter servers, for `RunnerStrategy`."""

    tick_seconds = BATCH_SECONDS / 2
    status_seconds = 0.5

    def __init__(self, spec: JobSpec, job_name: str, snapshots: Path | None, past: Past) -> None:
        """Serve the job of these settings.

        Args:
            spec: the settings.
            job_name: its name.
            snapshots: where its snapshots lie, None if nowhere.
            past: what there was before this life of its master.
        """
        self._spec = spec
        self._job_name = job_name
        self._snapshots = snapshots
        self._past = past
        self._remove_replaced: Callable[[], object] = lambda: None
        self._checkpoint: resuming.Checkpoint | None = None
        """From which the job continues; None in later lives of the master, which find that in the journal."""

    def begin(self) -> PsMaster:
        """Return a master that knows nothing yet. Raises BadInput for a checkpoint that the job can't go on from."""
        spec, past = self._spec, self._past
        highest = 0
        if not any(isinstance(record, ResumedRecord) for record in past.records):
            self._checkpoint = resuming.open_checkpoint(spec, verify=True)
            if self._checkpoint is not None or not past.length:  # later lives find this job's own there
                highest = resuming.highest_number(spec, self._checkpoint)
        saved = [record for record in past.records if isinstance(record, SavedRecord)]
        if saved:
            # A master before this one may not have come to it.
            self._remove_replaced = self._removal_by(saved[-1])
        return PsMaster(settings(spec, self._snapshots, self._checkpoint, highest))

    def _removal_by(self, record: SavedRecord) -> Callable[[], object]:
        """Return what removes the snapshots that one replaces."""
        directory = Path(record.path).parent.parent
        kept = self._spec.keep_checkpoint_max if self._spec.checkpoint_dir else 1
        return partial(checkpoints.remove_older, directory, kept, record.number)

    # ------------------------------------------------------------------ what people see

    def show_position(self, machine: PsMaster, history: EventHistory) -> None:
        """Take what is settled."""
        if machine.work.order is not None:
            history.stand(machine.work.order.epoch(machine.work.leases.low))
            history.step = machine.steps_done  # a roll-back takes some away
            history.progress(
                time.monotonic(), machine.steps_done, machine.work.records_done, machine.work.loss
            )

    def show_message(
        self, before: PsMaster, after: PsMaster, message: MemberMessage, history: EventHistory
    ) -> bool:
        """Tell whether it says what is settled or evaluated; figures are taken when they are shown."""
        return isinstance(message, Settled | TaskDone | TaskResult)

    def moment(self, machine: PsMaster) -> Hashable:
        """Return who is there, whether slots are placed, and what is done with them, and which state is evaluated."""
        copies = [copy.hands_over for copy in machine.slots.copies.under_way.values()]
        under_way = any(copies), not all(copies), machine.snapshots.under_way(machine.journal)
        return (
            len(machine.liveness.seen),
            len(machine.journal.servers),
            bool(machine.journal.entries),
            under_way,
            None if machine.evaluations.evaluation is None else machine.evaluations.evaluation.state,
        )

    def status(
        self,
        machine: PsMaster,
        history: EventHistory,
        forces: Mapping[Role, ReplicaSet],
        processes: Processes,
        now: float,
    ) -> JobStatus:
        """Return how the job stands."""
        self.show_position(machine, history)
        both = forces[Role.WORKER], forces[Role.PS]
        return PsStatusView(self._spec, machine, history, both, processes).status(self._job_name, now)

    def why_lost(self, machine: PsMaster, processes: Processes) -> str:
        """Return nothing: nobody's end holds a job up for long."""
        return ""

    def figures(self, machine: PsMaster, history: EventHistory) -> dict[str, Any]:
        """Return how many workers, servers and roll-backs there were, and where checkpoints lie."""
        self.show_position(machine, history)
        workers = [name for name in history.joined if process_name(name).role is Role.WORKER]
        resumed, saved = machine.journal.resumed, machine.journal.saved
        figures: dict[str, Any] = {}
        if resumed is not None and machine.work.order is not None:
            figures["resumed_from"] = str(Path(resumed.path).parent)
            order, done = machine.work.order, resumed.position
            history.records_before = order.records_before(done.low) + sum(map(order.records, done.above))
        if self._spec.checkpoint_dir and saved is not None:
            figures["checkpoint"] = str(Path(saved[0].path).parent)
        if self._spec.checkpoint_dir:
            figures["checkpoints_given_up"] = history.unsaved
        return {
            **figures,
            "joined": len(workers),
            "servers": {
                "joined": int(machine.journal.next_server),
                **history.servers,
                "at_the_end": len(machine.journal.servers),
            },
            "roll_backs": machine.journal.roll_back - (0 if resumed is None else resumed.roll_back),
        }

    # ------------------------------------------------------------------ processes

    def stages(self, machine: PsMaster) -> Mapping[str, Stage]:
        """Return that a server waits until it has a number; a worker takes part once it has enrolled."""
        stages = {
            seen.name: Stage.WAITING if seen.is_server and seen.server is None else Stage.JUDGED
            for seen in machine.liveness.seen.values()
        }
        servers = machine.journal.servers.values()
        return {**stages, **dict.fromkeys((one.name for one in servers), Stage.JUDGED)}

    def members_of(self, machine: PsMaster, name: str) -> Collection[MemberId]:
        """Return the member that a process was."""
        member = machine.liveness.members.get(name)
        return () if member is None else (member,)

    def leaves_when_told(self, machine: PsMaster, name: ProcessName) -> bool:
        """Tell whether it is a server that may have slots, which it hands over before it ends."""
        return any(server.name == str(name) for server in machine.journal.servers.values())

    def replicas_event(self, announce: Announce) -> replicas.Event | None:
        """Return that a process has joined, or that a server empties itself."""
        match announce.kind:
            case EventKind.JOINED:
                return replicas.Joined(process_name(announce.worker))
            case EventKind.LEAVING:
                return replicas.Leaving(process_name(announce.worker))
            case _:
                return None

    # ------------------------------------------------------------------ records and files

    def before_append(self, machine: PsMaster, record: Record) -> GiveUp | str | None:
        """Write for the auditor what servers have applied: before the job, and, before they end, in all."""
        if not self._spec.audit:
            return None
        if isinstance(record, FinishedRecord):
            # A master that comes later can't ask servers that have ended.
            return self._write_accounts(machine)
        return self._write_beginning(record) if isinstance(record, ResumedRecord) else None

    def _write_accounts(self, machine: PsMaster) -> str | None:
        slots = [(one.slot, one.pushes, one.sum) for one in sorted(machine.ending.accounts.values())]
        try:
            auditmark.write_accounts(Path(self._spec.audit), slots)
        except OSError as error:
            return f"--audit: {self._spec.audit} can't be written ({error.strerror or error}): the job ends once it can"
        return None

    def _write_beginning(self, record: ResumedRecord) -> GiveUp | None:
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
            return GiveUp(f"--audit: {self._spec.audit} can't be written: {error.strerror}", "bad-input")
        return None

    def after_append(self, machine: PsMaster, record: Record, actions: Actions) -> None:
        """Remove snapshots that a newer one replaces, and say where the job continues if that is not the newest checkpoint."""
        if (
            isinstance(record, ResumedRecord)
            and self._checkpoint is not None
            and self._checkpoint.passed_over
        ):
            actions.tell(EventKind.NOTE, self._checkpoint.passed_over)
        if isinstance(record, SavedRecord):
            self._remove_replaced = self._removal_by(record)
            in_background(self._remove_replaced)

    def complete_audit(self, machine: PsMaster, record: FinishedRecord) -> None:
        """Write whether all data was trained. Raises OSError."""
        auditmark.write_finished(
            Path(self._spec.audit),
            view=record.view,
            step=record.state.step,
            state_view=record.state.view,
            complete=machine.work.has_used_all_data,
        )

    def drop_snapshots(self, folder: Path | None, *, keeps_result: bool) -> None:
        """Remove snapshots that serve a running job only; of checkpoints those that are not whole."""
        if self._spec.checkpoint_dir:
            checkpoints.remove_drafts(Path(self._spec.checkpoint_dir))
            self._remove_replaced()  # the thread that does it may not have come to it
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


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

    def plan(shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> TaskOrder:
        if checkpoint is not None:
            resume(shards)  # refused before anything is journalled
        return tasks_of(spec, shards, validation)

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
        checkpoint_best=spec.checkpoint_best,
        resume=None if checkpoint is None else resume,
        restore=spec.ps_restore,
        accumulates=spec.accumulates,
        add_up=add_up,
        result_size=result_size,
    )
