"""The runner of a synchronous master: what it does when views follow each other."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Any

from elasticdl.cluster.cluster import ProcessName, process_name
from elasticdl.control.protocol.messages import MemberMessage, NextView, Register
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.data.plan.order import ledger_of
from elasticdl.data.plan.schedule import Schedule, policy_lanes
from elasticdl.data.plan.shard import Shard
from elasticdl.master.allreduce.groupstate import Settings
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core import auditmark
from elasticdl.master.core import events as machine_events
from elasticdl.master.core.records import FinishedRecord, Record, SnapshotRecord, ViewRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.reporting.statusview import StatusView, all_lost
from elasticdl.master.running.runner import Runner, times_of
from elasticdl.spec.jobspec import JobSpec


class AllReduceRunner(Runner):
    """One life of a synchronous job's master."""

    _machine: AllReduceMaster
    _tick_seconds = 0.025  # `moment_seconds` is 0.05
    _status_seconds = 0.2
    _told_lost = ""

    def _make_machine(self) -> AllReduceMaster:
        return AllReduceMaster(settings(self._spec, self._place.snapshots(self._spec)))

    def _resume_history(self) -> None:
        view, schedule = self._machine.view, self._machine.schedule
        if view is not None and schedule is not None:
            self._event_history.stand_at(view.position, schedule)
            self._event_history.committed(view.base.step)

    def _hear(self, connection: int, message: MemberMessage) -> None:
        if isinstance(message, Register | NextView) and message.report.state is not None:
            self._event_history.committed(message.report.state.step)
        before = self._machine.progress
        self._handle(machine_events.Heard(connection, message))
        progress = self._machine.progress
        if progress is not None and progress is not before:
            self._event_history.stand(progress.position.epoch)
            self._event_history.progress(
                time.monotonic(), progress.state.step, progress.records, progress.loss
            )
            self._changed = True

    def _is_ready(self, name: str) -> bool:
        return bool(self._lives_of(name)) or self._stands_in_view(name)

    def _stands_in_view(self, name: str) -> bool:
        view = self._machine.view
        return view is not None and any(peer.name == name for peer in view.members)

    def _lives_of(self, name: str) -> Collection[MemberId]:
        return [member for member, seen in self._machine.seen.items() if seen.peer.name == name]

    def _leaves_when_told(self, name: ProcessName) -> bool:
        return False

    def _after_process(self) -> None:
        lost = all_lost(self._machine.view, self._machine.gone, self._processes.unproven, self._spec)
        if lost and lost != self._told_lost:
            self._tell(EventKind.NOTE, lost)
        self._told_lost = lost

    def _moment(self) -> Hashable:
        view = self._machine.view
        return len(self._machine.seen), 0 if view is None else view.id

    def _after_record(self, record: Record) -> None:
        match record:
            case ViewRecord(view):
                self._begin_view(view)
            case SnapshotRecord(_, _, _, path):
                self._drop_older_snapshot(path)

    def _begin_view(self, view: View) -> None:
        before = self._machine.view
        if self._machine.schedule is not None:
            self._event_history.stand_at(view.position, self._machine.schedule)
        for peer in view.members:
            self._direct(replicas.Joined(process_name(peer.name)))
            if before is None:
                self._tell(EventKind.JOINED, f"{peer.name} has joined", worker=peer.name, view=view.id)
        if view.final:
            self._direct(replicas.Ending(stopping=False))

    def _drop_older_snapshot(self, path: str) -> None:
        older, view = self._machine.journal.snapshot, self._machine.view
        if older is not None and older.path != path and (view is None or view.snapshot != older.path):
            # A volume that does not answer must not hold up the master.
            threading.Thread(target=_remove, args=(Path(older.path),), name="snapshots", daemon=True).start()

    def _status(self, now: float) -> JobStatus:
        view = StatusView(self._spec, self._machine, self._event_history, self._force, self._processes)
        return view.status(self._place.name, now)

    def _complete_audit(self, record: FinishedRecord) -> None:
        view = self._machine.view
        assert view is not None, "a job that has begun has a view"
        auditmark.write_finished(
            Path(self._spec.audit),
            view=record.view,
            step=record.state.step,
            state_view=record.state.view,
            complete=view.position.lanes == 0,
        )

    def _figures(self) -> dict[str, Any]:
        machine = self._machine
        changes = 0 if machine.view is None else machine.view.id - 1
        return {"joined": len(machine.journal.known), "view_changes": max(0, changes)}


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # what can't be removed stays
        path.unlink(missing_ok=True)


def settings(spec: JobSpec, snapshots: Path | None) -> Settings:
    """Return what the machine takes from the job's settings; `snapshots`: the folder of its members' snapshots, if there is one."""

    def plan(shards: tuple[Shard, ...]) -> Schedule:
        return Schedule(ledger_of(spec, shards), spec.num_epochs, spec.max_step)

    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=plan,
        output=Path(spec.output) if spec.output else None,
        snapshots=snapshots,
        policy_lanes=functools.partial(policy_lanes, spec.global_batch_size or None, spec.minibatch_size),
        times=times_of(spec),
    )
