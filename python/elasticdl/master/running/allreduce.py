"""What the runner of a synchronous job's master asks: members, views, and snapshots of the group's state."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.protocol.messages import MemberMessage, NextView, Register
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.order import dealing_of, schedule_of, with_plan
from elasticdl.data.plan.schedule import Schedule, policy_lanes
from elasticdl.data.plan.shard import Shard
from elasticdl.master.allreduce import resuming
from elasticdl.master.allreduce.machine import AllReduceMaster, Settings
from elasticdl.master.core import auditmark
from elasticdl.master.core.events import Announce, GiveUp
from elasticdl.master.core.records import (
    FinishedRecord,
    Record,
    ResumedStateRecord,
    SnapshotRecord,
    ViewRecord,
)
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.starting import Stage
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.statusview import StatusView, all_lost
from elasticdl.master.running.context import Past
from elasticdl.master.running.metricsums import add_up, result_size
from elasticdl.master.running.strategy import Actions, in_background
from elasticdl.master.running.times import times_of
from elasticdl.spec.jobspec import JobSpec


class AllReduceStrategy:
    """The synchronous way of training, for `RunnerStrategy`."""

    tick_seconds = 0.025  # `moment_seconds` is 0.05
    status_seconds = 0.2

    def __init__(self, spec: JobSpec, job_name: str, snapshots: Path | None, past: Past) -> None:
        """Serve the job of these settings.

        Args:
            spec: the settings.
            job_name: its name.
            snapshots: the folder of its members' snapshots, None if there is none.
            past: what there was before this life of its master.
        """
        self._spec = spec
        self._job_name = job_name
        self._snapshots = snapshots
        self._past = past
        self._remove_replaced: Callable[[Collection[Path]], object] = lambda spared: None
        self._checkpoint: resuming.GroupCheckpoint | None = None
        """From which the job continues; None in later lives of the master, which find that in the journal."""

    def begin(self) -> AllReduceMaster:
        """Return a master that knows nothing yet. Raises BadInput for a checkpoint that the job can't go on from."""
        spec, past = self._spec, self._past
        highest = 0
        if not any(isinstance(record, ResumedStateRecord) for record in past.records):
            self._checkpoint = resuming.open_checkpoint(spec, verify=True)
            if self._checkpoint is not None or not past.length:  # later lives find this job's own there
                highest = resuming.highest_of(spec, self._checkpoint)
        saved = [record for record in past.records if isinstance(record, SnapshotRecord) and record.number]
        if saved:
            # A master before this one may have died between the record and the name, or before older ones were removed.
            with contextlib.suppress(OSError):
                self._publish(saved[-1])
                self._remove_replaced = self._removal_by(saved[-1])
        return AllReduceMaster(settings(spec, self._snapshots, self._checkpoint, highest))

    def _publish(self, record: SnapshotRecord) -> None:
        assert self._snapshots is not None, "nothing is saved without a folder"
        draft = checkpoints.group_draft_of(
            self._snapshots, record.view, record.state.step, passed=record.passed
        )
        checkpoints.publish_draft(draft, self._snapshots, record.number)

    # ------------------------------------------------------------------ what people see

    def show_position(self, machine: AllReduceMaster, history: EventHistory) -> None:
        """Take the base of the current view."""
        view, schedule = machine.view, machine.schedule
        if view is not None and schedule is not None:
            history.stand_at(view.position, schedule)
            history.committed(view.base.step)

    def show_message(
        self,
        before: AllReduceMaster,
        after: AllReduceMaster,
        message: MemberMessage,
        history: EventHistory,
    ) -> bool:
        """Take the state that a member has, and the last progress."""
        if isinstance(message, Register | NextView) and message.report.state is not None:
            history.committed(message.report.state.step)
        progress = after.steps.progress
        if progress is None or progress is before.steps.progress:
            return False
        history.stand(progress.position.epoch)
        history.progress(time.monotonic(), progress.state.step, progress.records, progress.loss)
        return True

    def moment(self, machine: AllReduceMaster) -> Hashable:
        """Return who is there, the view, and the state that all of it evaluate."""
        view, evaluates = machine.view, machine.gates.evaluation is not None
        evaluated = machine.gates.all_at(view) if view is not None and evaluates else None
        return len(machine.liveness.seen), 0 if view is None else view.id, evaluated

    def status(
        self,
        machine: AllReduceMaster,
        history: EventHistory,
        forces: Mapping[Role, ReplicaSet],
        processes: Processes,
        now: float,
    ) -> JobStatus:
        """Return how the job stands."""
        view = StatusView(self._spec, machine, history, forces[Role.WORKER], processes)
        return view.status(self._job_name, now)

    def why_lost(self, machine: AllReduceMaster, processes: Processes) -> str:
        """Return what people can do if all members are on nodes of which nothing is heard."""
        return all_lost(machine.view, machine.gone, processes.unproven, self._spec)

    def figures(self, machine: AllReduceMaster, history: EventHistory) -> dict[str, Any]:
        """Return how many members and changes of the view there were, and where checkpoints lie."""
        changes, journal, schedule = (
            0 if machine.view is None else machine.view.id - 1,
            machine.journal,
            machine.schedule,
        )
        figures: dict[str, Any] = {}
        if journal.plan is not None:  # the job's settings don't say it
            figures["num_epochs"] = journal.plan.num_epochs
        resumed, saved = journal.resumed_state, journal.snapshot
        if resumed is not None and schedule is not None:
            figures["resumed_from"] = str(Path(resumed.path).parent)
            epochs = resumed.position.epoch * schedule.ledger.num_records
            history.records_before = epochs + schedule.records_done(resumed.position)
        if self._spec.checkpoint_dir:
            if saved is not None and saved.view:
                figures["checkpoint"] = str(Path(saved.path).parent)
            figures["checkpoints_given_up"] = history.unsaved
        return {**figures, "joined": len(journal.known), "view_changes": max(0, changes)}

    # ------------------------------------------------------------------ processes

    def stages(self, machine: AllReduceMaster) -> Mapping[str, Stage]:
        """Return that a worker waits until it stands in a view."""
        known, members = machine.journal.known, () if machine.view is None else machine.view.members
        stages = {
            seen.peer.name: Stage.JUDGED if member in known else Stage.WAITING
            for member, seen in machine.liveness.seen.items()
        }
        return {**stages, **dict.fromkeys((peer.name for peer in members), Stage.JUDGED)}

    def members_of(self, machine: AllReduceMaster, name: str) -> Collection[MemberId]:
        """Return the members that a worker was."""
        return [member for member, seen in machine.liveness.seen.items() if seen.peer.name == name]

    def leaves_when_told(self, machine: AllReduceMaster, name: ProcessName) -> bool:
        """Return that none does: workers drain by a signal."""
        return False

    def replicas_event(self, announce: Announce) -> replicas.Event | None:
        """Return nothing: who has joined follows from the view."""
        return None

    # ------------------------------------------------------------------ records and files

    def before_append(self, machine: AllReduceMaster, record: Record) -> GiveUp | None:
        """Write for the auditor what was trained before the job, if it continues from a checkpoint."""
        if not self._spec.audit or not isinstance(record, ResumedStateRecord):
            return None
        schedule, position = machine.schedule, record.position
        assert schedule is not None, "the data is journalled before"
        tasks = [schedule.ledger.task(position.epoch, place).id for place in range(position.first_task)]
        begun = [(schedule.task(position, lane).id, position.chunk) for lane in range(position.lanes)]
        try:
            auditmark.write_group_beginning(
                Path(self._spec.audit),
                checkpoint=record.path,
                step=record.state.step,
                epoch=position.epoch,
                done=tasks,
                begun=begun if position.chunk else (),
            )
        except OSError as error:
            return GiveUp(f"--audit: {self._spec.audit} can't be written: {error.strerror}", "bad-input")
        return None

    def after_append(self, machine: AllReduceMaster, record: Record, actions: Actions) -> None:
        """Say who has joined with a view, and where the job continues; give a snapshot its name."""
        match record:
            case ViewRecord(view):
                self._begin_view(machine, view, actions)
            case SnapshotRecord():
                self._name_snapshot(machine, record, actions)
            case ResumedStateRecord():
                if self._checkpoint is not None and self._checkpoint.passed_over:
                    actions.tell(EventKind.NOTE, self._checkpoint.passed_over)

    def _name_snapshot(self, machine: AllReduceMaster, record: SnapshotRecord, actions: Actions) -> None:
        """Give a journalled snapshot its name, and remove those that it replaces."""
        try:
            self._publish(record)
        except OSError as error:
            what = f"{record.path} can't get its name: {error.strerror}"
            actions.tell(EventKind.NOTE, f"{what}; the next master, or the next snapshot, has another try")
            return
        # Members of the current view may still be reading theirs.
        spared = (
            {Path(machine.view.snapshot)} if machine.view is not None and machine.view.snapshot else set()
        )
        self._remove_replaced = self._removal_by(record)
        in_background(self._remove_replaced, spared)

    def _removal_by(self, record: SnapshotRecord) -> Callable[[Collection[Path]], object]:
        """Return what removes the snapshots that one replaces."""
        assert self._snapshots is not None, "nothing is saved without a folder"
        kept = self._spec.keep_checkpoint_max if self._spec.checkpoint_dir else 1
        age = (record.state.step, record.passed)
        return functools.partial(checkpoints.remove_older_of_group, self._snapshots, kept, record.number, age)

    def _begin_view(self, machine: AllReduceMaster, view: View, actions: Actions) -> None:
        if machine.schedule is not None:
            actions.history.stand_at(view.position, machine.schedule)
        for peer in view.members:
            actions.direct(replicas.Joined(process_name(peer.name)))
            if machine.view is None:
                actions.tell(EventKind.JOINED, f"{peer.name} has joined", worker=peer.name, view=view.id)
        if view.final:
            actions.direct(replicas.Ending(stopping=False))

    def complete_audit(self, machine: AllReduceMaster, record: FinishedRecord) -> None:
        """Write whether all data was trained. Raises OSError."""
        assert machine.view is not None, "a job that has begun has a view"
        auditmark.write_finished(
            Path(self._spec.audit),
            view=record.view,
            step=record.state.step,
            state_view=record.state.view,
            complete=machine.view.position.lanes == 0,
        )

    def drop_snapshots(self, folder: Path | None, *, keeps_result: bool) -> None:
        """Remove snapshots that serve a running job only; of checkpoints those that are not whole."""
        if self._spec.checkpoint_dir:
            checkpoints.remove_drafts(Path(self._spec.checkpoint_dir))
            self._remove_replaced(())  # the thread that does it may not have come to it
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def settings(
    spec: JobSpec,
    snapshots: Path | None,
    checkpoint: resuming.GroupCheckpoint | None = None,
    highest: int = 0,
) -> Settings:
    """Return what the machine takes from the job's settings.

    Args:
        spec: the settings.
        snapshots: the folder of its members' snapshots, None if there is none.
        checkpoint: from which the job continues.
        highest: number of a checkpoint that there is.
    """

    def for_loop(said: LoopPlan) -> Settings:
        return settings(with_plan(spec, said), snapshots, checkpoint, highest)

    def resume(shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> ResumedStateRecord:
        assert checkpoint is not None, "asked for if there is one"
        schedule = schedule_of(spec, shards, validation)
        return resuming.resume(checkpoint, schedule, dealing_of(spec, shards), highest)

    def plan(shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Schedule:
        if checkpoint is not None:
            resume(shards, validation)  # refused before anything is journalled
        return schedule_of(spec, shards, validation)

    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=plan,
        for_loop=for_loop if spec.job_command else None,
        add_up=add_up,
        result_size=result_size,
        output=Path(spec.output) if spec.output else None,
        snapshots=snapshots,
        lasting=bool(spec.checkpoint_dir),
        highest=highest,
        resume=None if checkpoint is None else resume,
        policy_lanes=functools.partial(policy_lanes, spec.global_batch_size or None, spec.minibatch_size),
        times=times_of(spec),
    )
