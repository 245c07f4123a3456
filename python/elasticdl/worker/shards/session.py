"""The tasks of a program in a job: a worker that gets tasks, turned inside out, as the program's thread drives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from elasticdl.cluster.cluster import FINISHED, RELEASED
from elasticdl.control.protocol.messages import FoundShards
from elasticdl.control.transport.keys import Key
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.programtasks import tasks_of_program
from elasticdl.data.readers.patience import Patience
from elasticdl.errors import BadModel, BadSetting, Cancelled
from elasticdl.files.predictions import draft_of, parts_of
from elasticdl.worker.events import Exit, ProgramError
from elasticdl.worker.loop.control import Left
from elasticdl.worker.process import MemberProcess
from elasticdl.worker.raised import program_error
from elasticdl.worker.shards.output import parts_in
from elasticdl.worker.shards.source import Room, Source
from elasticdl.worker.shards.task import ShardTask
from elasticdl.worker.tasking.machine import ChunkDone, DoChunk, TaskMember
from elasticdl.worker.tasking.runner import TaskInbox

LEFT_EARLY = (
    "the program ended before all tasks were done: every worker runs its loop over elasticdl.shards until that ends; what follows the loop "
    "is not part of the job"
)


class JobTasks:
    """Implements `elasticdl.worker.shards.face.Tasks`."""

    def __init__(self, process: MemberProcess, leaving: Callable[[Exit], None]) -> None:
        """Nothing is processed yet; `begin` follows. `leaving` is called at once when this process is out of its job."""
        self._process, self._leaving = process, leaving
        self._inbox: TaskInbox | None = None
        self._task: ShardTask | None = None
        self._left: Exit | None = None

    @property
    def room(self) -> Room:
        """Return what reading files needs."""
        process = self._process
        patience = Patience(process.spec.storage_seconds, process.storage.tell, process.heart.alive)
        return Room(process.place.path / "data", patience)

    def begin(self, source: Source, records_per_task: int) -> None:
        """Say what is processed, and take part. Raises BadInput for unusable data, or if the job processes something else."""
        process, spec, shards = self._process, self._process.spec, source.shards
        self._source, self._tasks = source, tasks_of_program(shards, records_per_task)
        plan = LoopPlan(self._tasks.num_records, records_per_task, num_epochs=1, shuffle=False)
        process.found(FoundShards(shards, (), plan))
        try:
            agreed = process.data.result()
        except Cancelled as over:  # the job ended before its data was known
            self._leave(Exit(RELEASED, str(over)))
        if agreed.plan is None or (agreed.plan, agreed.shards) != (plan, shards):
            raise BadSetting(
                "this worker's program processes other records than the job's first worker, or in other tasks; all workers run the same "
                "program with the same arguments"
            )
        source.check(agreed.shards)
        self._directory: Path | None = None
        self._published: frozenset[int] = frozenset()
        if spec.output:
            self._directory = parts_of(draft_of(Path(spec.output), process.place.key(Key.DATA)))
            # What workers have published that died before a master knew of it, or together with it.
            self._published = parts_in(self._directory)
        member = TaskMember(process.id, process.name, "")
        self._inbox = TaskInbox(member, process.heart, process.send, self._leaving, lambda: None)
        process.attach(self._inbox.feed)

    def next(self) -> ShardTask | None:
        """Let the task before be done, and return the next one; None when all are. Raises Left if this process is out of its job."""
        assert self._inbox is not None, "`begin` comes first"
        if self._left is not None:
            return None
        if (task := self._task) is not None:
            task.done()
            self._task = None
            self._inbox.feed(ChunkDone(task.number, 0, b""))
        while True:
            work = self._inbox.take()
            if isinstance(work, Exit):
                if work.code != FINISHED:
                    self._leave(work)
                self._end(work)
                return None
            assert isinstance(work, DoChunk), "nothing else is leased to a program"
            if work.task not in self._published:
                self._task = ShardTask(
                    self._tasks, work.task, self._source, self._directory, self._process.heart.alive
                )
                return self._task
            self._inbox.feed(ChunkDone(work.task, 0, b""))

    def finish(self) -> int:
        """Take the program's end, an error if tasks are left; return the exit code."""
        if self._left is not None:
            return self._left.code
        if self._inbox is None:
            return self.fail(BadModel("the program ended, and processed nothing: it never asked for a task"))
        return self._fail(ProgramError("program", "left its loop", self._where(), LEFT_EARLY))

    def fail(self, error: BaseException) -> int:
        """Tell the job that the program has failed, and wait until it knows; return the exit code."""
        return self._fail(program_error(error, self._where()))

    def _fail(self, error: ProgramError) -> int:
        if self._task is not None:
            self._task.drop()
        if self._left is None and self._inbox is None:
            self._end(self._process.report(error))
        elif self._left is None and self._inbox is not None:
            self._inbox.feed(error)
        while self._left is None:
            assert self._inbox is not None, "without one the process has left"
            work = self._inbox.take()
            if isinstance(work, Exit):
                self._end(work)
        return self._left.code

    def _where(self) -> str:
        return "" if self._task is None else repr(self._task)

    def _leave(self, ended: Exit) -> NoReturn:
        self._end(ended)
        raise Left(ended.code)

    def _end(self, ended: Exit) -> None:
        self._left = ended
        self._process.leave(ended)
