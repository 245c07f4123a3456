"""What the runner of the master of a job that evaluates or predicts asks: workers, tasks, and where predictions are put."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

from elasticdl.cluster.cluster import ProcessName, Role, process_name
from elasticdl.control.protocol.messages import MemberMessage, TaskKind, TaskResult
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.order import pass_of, with_plan
from elasticdl.data.plan.shard import Shard
from elasticdl.files.permissions import PRIVATE_FOLDER
from elasticdl.files.predictions import parts_of
from elasticdl.master.core.events import Announce, GiveUp
from elasticdl.master.core.records import CheckpointRecord, FinishedRecord, Record, ShardsRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.starting import Stage
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.taskstatusview import TaskStatusView
from elasticdl.master.running.context import Past
from elasticdl.master.running.metricsums import add_up, result_size
from elasticdl.master.running.strategy import Actions
from elasticdl.master.running.times import times_of
from elasticdl.master.tasking.machine import Settings, TaskMaster
from elasticdl.master.tasking.weights import WeightsCheckpoint, open_checkpoint
from elasticdl.spec.jobspec import JobKind, JobSpec


class TaskStrategy:
    """Evaluation, prediction, or the tasks of a program, for `RunnerStrategy`."""

    tick_seconds = 0.1
    status_seconds = 0.2

    def __init__(self, spec: JobSpec, job_name: str, draft: Path | None, past: Past) -> None:
        """Serve the job of these settings.

        `draft`: where predictions are made, None if nowhere; `past`: what there was before this life of its master.
        """
        self._spec = spec
        self._past = past
        self._checkpoint: WeightsCheckpoint | None = None
        """With whose weights the job works; None in later lives of the master, which find that in the journal."""
        self._job_name = job_name
        self._draft = draft

    def begin(self) -> TaskMaster:
        """Return a master that knows nothing yet. Raises BadInput for a checkpoint that can't be used."""
        if not any(isinstance(record, CheckpointRecord) for record in self._past.records):
            self._checkpoint = open_checkpoint(self._spec, verify=True)
        return TaskMaster(settings(self._spec, self._draft, self._checkpoint))

    # ------------------------------------------------------------------ what people see

    def show_position(self, machine: TaskMaster, history: EventHistory) -> None:
        """Take what is done."""
        if machine.plan is not None:
            history.progress(time.monotonic(), 0, machine.records_done, None)

    def show_message(
        self, before: TaskMaster, after: TaskMaster, message: MemberMessage, history: EventHistory
    ) -> bool:
        """Take the records of a task that is done, or of all, if their rows are in a table."""
        if not isinstance(message, TaskResult) or after.tasks_done == before.tasks_done or after.plan is None:
            return False
        if after.is_done:
            records = after.records_done
        else:
            # The sum over all tasks, at each of them, would be their square.
            records = history.records + after.plan.num_task_records(message.task)
        history.progress(time.monotonic(), 0, records, None)
        return True

    def moment(self, machine: TaskMaster) -> Hashable:
        """Return who is there."""
        return len(machine.liveness.seen)

    def status(
        self,
        machine: TaskMaster,
        history: EventHistory,
        forces: Mapping[Role, ReplicaSet],
        processes: Processes,
        now: float,
    ) -> JobStatus:
        """Return how the job stands."""
        view = TaskStatusView(self._spec, machine, history, forces[Role.WORKER], processes)
        return view.status(self._job_name, now)

    def why_lost(self, machine: TaskMaster, processes: Processes) -> str:
        """Return nothing: nobody's end holds a job up for long."""
        return ""

    def figures(self, machine: TaskMaster, history: EventHistory) -> dict[str, Any]:
        """Return how many workers took part, how many records they have gone through, and whose weights they had."""
        what = f"records_{machine.done_word}"
        figures: dict[str, Any] = {"joined": len(history.joined), what: history.records}
        if machine.settings.processes:
            figures |= {"tasks": machine.tasks_done, "records_per_second": history.whole_rate(time.time())}
        if machine.journal.checkpoint is not None:
            figures["weights_of"] = str(Path(machine.journal.checkpoint).parent)
        return figures

    # ------------------------------------------------------------------ processes

    def stages(self, machine: TaskMaster) -> Mapping[str, Stage]:
        """Return that a worker takes part once it has enrolled."""
        return {seen.name: Stage.JUDGED for seen in machine.liveness.seen.values()}

    def members_of(self, machine: TaskMaster, name: str) -> Collection[MemberId]:
        """Return the member that a process was."""
        member = machine.liveness.member(name)
        return () if member is None else (member,)

    def leaves_when_told(self, machine: TaskMaster, name: ProcessName) -> bool:
        """Return that none does: workers leave by a signal."""
        return False

    def replicas_event(self, announce: Announce) -> replicas.Event | None:
        """Return that a process has joined."""
        if announce.kind == EventKind.JOINED:
            return replicas.Joined(process_name(announce.worker))
        return None

    # ------------------------------------------------------------------ records and files

    def before_append(self, machine: TaskMaster, record: Record) -> GiveUp | None:
        """Make the directory of the parts before any worker gets a task."""
        if self._draft is None or not isinstance(record, ShardsRecord):
            return None
        try:
            if self._spec.output_table is not None:
                self._draft.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            parts_of(self._draft).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = self._spec.output if self._spec.output_table is None else self._draft
            return GiveUp(f"--output: {where} can't be written: {error.strerror}", "bad-input")
        return None

    def after_append(self, machine: TaskMaster, record: Record, actions: Actions) -> None:
        """Say which checkpoints are damaged, if another one was taken; tasks are not journalled."""
        if (
            isinstance(record, CheckpointRecord)
            and self._checkpoint is not None
            and self._checkpoint.passed_over
        ):
            actions.tell(EventKind.NOTE, self._checkpoint.passed_over)

    def complete_audit(self, machine: TaskMaster, record: FinishedRecord) -> None:
        """Do nothing: nothing is trained."""

    def drop_snapshots(self, folder: Path | None, *, keeps_result: bool) -> None:
        """Remove what was beside the result, and parts of one that is not whole."""
        if self._draft is not None and not keeps_result:
            shutil.rmtree(self._draft, ignore_errors=True)


def settings(spec: JobSpec, draft: Path | None, checkpoint: WeightsCheckpoint | None) -> Settings:
    """Return what the machine takes from the job's settings.

    Args:
        spec: the settings.
        draft: where predictions are made, None if nowhere.
        checkpoint: that was found, None if there is none or the journal has it.
    """

    def plan(shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> OnePass:
        return pass_of(spec, shards)

    def for_loop(said: LoopPlan) -> Settings:
        return settings(with_plan(spec, said), draft, checkpoint)

    table = spec.output_table
    return Settings(
        workers=spec.num_workers.maximum,
        minimum=spec.num_workers.minimum,
        relaunches=spec.relaunch_on_worker_failure,
        plan=plan,
        output=Path(spec.output) if spec.output and table is None else None,
        times=times_of(spec),
        for_loop=for_loop if spec.job_command else None,
        processes=spec.kind is JobKind.PROCESS,
        task=TaskKind(spec.kind.value),
        add_up=add_up,
        result_size=result_size,
        draft="" if draft is None else str(parts_of(draft)),
        table="" if table is None else table.name,
        checkpoint="" if checkpoint is None else str(checkpoint.path),
    )
