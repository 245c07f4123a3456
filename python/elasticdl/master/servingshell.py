"""The shell of the master of a job with parameter servers."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Collection, Hashable, Set
from pathlib import Path
from typing import Any

from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.messages import MemberMessage
from elasticdl.control.serving import Settled, TaskDone
from elasticdl.control.status import JobStatus
from elasticdl.control.view import MemberId
from elasticdl.data.order import ledger_of
from elasticdl.data.shard import Shard
from elasticdl.data.tasks import TaskOrder
from elasticdl.master import auditmark, relaunch
from elasticdl.master import events as machine_events
from elasticdl.master.records import FinishedRecord, Record, SavedRecord
from elasticdl.master.serving import ServingMaster, Settings
from elasticdl.master.servingsight import ServingSight
from elasticdl.master.shell import Shell, times_of
from elasticdl.spec.jobspec import JobSpec


class ServingShell(Shell):
    """One life of the master of a job with parameter servers."""

    _machine: ServingMaster

    def _make_machine(self) -> ServingMaster:
        return ServingMaster(settings(self._spec, self._place.snapshots(self._spec)))

    def _has_begun(self) -> bool:
        return bool(self._machine.journal.entries)

    def _taking_part(self) -> Set[str]:
        return set()

    def _resume_story(self) -> None:
        self._tell_figures()

    def _hear(self, connection: int, message: MemberMessage) -> None:
        self._handle(machine_events.Heard(connection, message))
        if isinstance(message, Settled | TaskDone):
            self._tell_figures()
            self._changed = True

    def _tell_figures(self) -> None:
        machine = self._machine
        if machine.order is not None:
            self._story.stand(machine.order.epoch(machine.leases.low))
            self._story.step = machine.steps_done  # a roll-back takes some away
            self._story.progress(time.monotonic(), machine.steps_done, machine.records_done, machine.loss)

    def _lives_of(self, name: str) -> Collection[MemberId]:
        return [member for member, seen in self._machine.seen.items() if seen.name == name]

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
            newest = Path(record.path).parent
            threading.Thread(target=_remove_older, args=(newest,), name="snapshots", daemon=True).start()

    def _carry_out(
        self, instruction: machine_events.Instruction, events: deque[machine_events.Event]
    ) -> None:
        if isinstance(instruction, machine_events.Append) and isinstance(instruction.record, FinishedRecord):
            # Before the record: a master that comes later can't ask servers that have ended.
            self._write_accounts()
        if isinstance(instruction, machine_events.Announce) and instruction.kind in ("joined", "leaving"):
            name = process_name(instruction.worker)
            joined = instruction.kind == "joined"
            self._direct(relaunch.Joined(name) if joined else relaunch.Leaving(name), name.role)
        super()._carry_out(instruction, events)

    def _write_accounts(self) -> None:
        if self._spec.audit:
            accounts = sorted(self._machine.accounts.values())
            auditmark.write_accounts(
                Path(self._spec.audit), [(one.slot, one.pushes, one.sum) for one in accounts]
            )

    def _status(self, now: float) -> JobStatus:
        servers = self._forces[Role.PS]
        sight = ServingSight(
            self._spec,
            self._machine,
            self._story,
            (self._force, servers),
            self._processes,
            self._unwritten is not None,
        )
        return sight.status(self._place.name, now)

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
        workers = [name for name in self._story.joined if process_name(name).role is Role.WORKER]
        return {
            "joined": len(workers),
            "servers": {
                "joined": int(machine.journal.next_server),
                "at_the_end": len(machine.journal.servers),
            },
            "roll_backs": machine.journal.roll_back,
        }


def _remove_older(newest: Path) -> None:
    with contextlib.suppress(OSError):  # what can't be removed stays
        for directory in newest.parent.glob("snapshot-*"):
            if directory != newest:
                shutil.rmtree(directory, ignore_errors=True)


def settings(spec: JobSpec, snapshots: Path | None) -> Settings:
    """Return what the machine takes from the job's settings, and where its snapshots lie, if anywhere."""

    def plan(shards: tuple[Shard, ...]) -> TaskOrder:
        return TaskOrder(ledger_of(spec, shards), spec.num_epochs, spec.max_step)

    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=plan,
        times=times_of(spec),
        servers=spec.num_ps_pods,
        replicas=spec.replicas,
        snapshots="" if snapshots is None else str(snapshots),
        checkpoint_steps=spec.checkpoint_steps,
    )
