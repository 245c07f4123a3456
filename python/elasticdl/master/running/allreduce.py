"""What the runner of a synchronous job's master asks: members, views, and snapshots of the group's state."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.protocol.messages import MemberMessage, NextView, Register
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.data.plan.order import schedule_of
from elasticdl.data.plan.schedule import policy_lanes
from elasticdl.master.allreduce.machine import AllReduceMaster, Settings
from elasticdl.master.core import auditmark
from elasticdl.master.core.events import Announce
from elasticdl.master.core.records import FinishedRecord, Record, SnapshotRecord, ViewRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.starting import Stage
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.statusview import StatusView, all_lost
from elasticdl.master.running.metricsums import add_up, result_size
from elasticdl.master.running.strategy import Actions, in_background
from elasticdl.master.running.times import times_of
from elasticdl.spec.jobspec import JobSpec


class AllReduceStrategy:
    """The synchronous way of training, for `RunnerStrategy`."""

    tick_seconds = 0.025  # `moment_seconds` is 0.05
    status_seconds = 0.2

    def __init__(self, spec: JobSpec, job_name: str, snapshots: Path | None) -> None:
        """Serve the job of these settings; `snapshots`: the folder of its members' snapshots, if there is one."""
        self._spec = spec
        self._job_name = job_name
        self._snapshots = snapshots

    def begin(self) -> AllReduceMaster:
        """Return a master that knows nothing yet."""
        return AllReduceMaster(settings(self._spec, self._snapshots))

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
        """Return who is there, and the view."""
        return len(machine.liveness.seen), 0 if machine.view is None else machine.view.id

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
        """Return how many members and changes of the view there were."""
        changes = 0 if machine.view is None else machine.view.id - 1
        return {"joined": len(machine.journal.known), "view_changes": max(0, changes)}

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

    def before_append(self, machine: AllReduceMaster, record: Record) -> None:
        """Do nothing: all that a record of a synchronous job depends on is journalled."""

    def after_append(self, machine: AllReduceMaster, record: Record, actions: Actions) -> None:
        """Say who has joined with a view, and remove the snapshot before this one."""
        match record:
            case ViewRecord(view):
                self._begin_view(machine, view, actions)
            case SnapshotRecord(_, _, _, path):
                older, view_now = machine.journal.snapshot, machine.view
                kept = {path, None if view_now is None else view_now.snapshot}
                if older is not None and older.path not in kept:
                    in_background(_remove, Path(older.path))

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

    def drop_snapshots(self, folder: Path | None) -> None:
        """Remove all: they serve a running job only."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # what can't be removed stays
        path.unlink(missing_ok=True)


def settings(spec: JobSpec, snapshots: Path | None) -> Settings:
    """Return what the machine takes from the job's settings; `snapshots`: the folder of its members' snapshots, if there is one."""

    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=functools.partial(schedule_of, spec),
        add_up=add_up,
        result_size=result_size,
        output=Path(spec.output) if spec.output else None,
        snapshots=snapshots,
        policy_lanes=functools.partial(policy_lanes, spec.global_batch_size or None, spec.minibatch_size),
        times=times_of(spec),
    )
