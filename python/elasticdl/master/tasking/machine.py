"""The master of a job that evaluates or predicts, as a pure state machine: time and events in, instructions out.

It leases tasks to workers; a task's first result counts. Nothing of that is journalled: workers repeat what they have done to a new
master, and what died with them is done again with the same bits. Predictions that go to a table are loaded by one worker when all tasks
are done. What every master does is in `master/core/machine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    AtGate,
    Evaluated,
    Exported,
    Failed,
    Finished,
    FoundShards,
    MemberMessage,
    Note,
    ProgramFailed,
    Released,
    StopJob,
    TaskKind,
    TaskResult,
    UseCheckpoint,
)
from elasticdl.control.protocol.psmessages import Enroll, Enrolled, Holding, Leave
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.tasking import NO_VIEW, STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import machine as core
from elasticdl.master.core.evaluated import evaluated
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.evaluationresults import AddUp, ResultSize, bad_metrics, bad_result
from elasticdl.master.core.events import Announce, Beat, Kill
from elasticdl.master.core.machine import Link, MasterCore, Out
from elasticdl.master.core.records import (
    CheckpointRecord,
    EvaluatedRecord,
    FinishedRecord,
    Journal,
    Record,
    ShardsRecord,
)
from elasticdl.master.tasking.liveness import Liveness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(core.Settings):
    """What the machine takes from the job's settings.

    Attributes:
        task: what workers do.
        add_up: adds up results of evaluation tasks.
        result_size: bytes of such a result, by what it consists of.
        draft: where predictions lie until all of them are there; empty if they are written nowhere.
        table: the table into which they are loaded then, for people; empty if they are files.
        checkpoint: manifest of the one that was found; empty if the weights are in a file, or a master before has found one.
    """

    task: TaskKind
    add_up: AddUp
    result_size: ResultSize
    draft: str = ""
    table: str = ""
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True)  # no slots: see elasticdl.control.protocol.frozen
class TaskLink(Link):
    """One control stream of a worker; `checkpoint`: it was told which one is used."""

    checkpoint: bool = False


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class TaskMaster(MasterCore):
    """One master: events in, instructions out.

    Attributes:
        settings: of the job.
        links: control streams.
        plan: the tasks, None until the data is known.
        tasks: who does which, and what has come back; None before.
        metrics: what the result of each consists of, as a worker has said; that may be before the data is known.
        added_up: what all tasks of an evaluation have added up.
        loader: who is to load the rows of all tasks, until it has gone.
        loaded: they are in the table, as somebody has said.
        liveness: who is there.
    """

    first = "the first task was done"

    settings: Settings
    links: Mapping[int, TaskLink] = field(default_factory=dict)
    plan: OnePass | None = None
    tasks: Evaluation | None = None
    metrics: str = ""
    added_up: bytes | None = None
    loader: MemberId | None = None
    loaded: bool = False
    liveness: Liveness = field(default_factory=Liveness)

    # ------------------------------------------------------------------ for people

    @property
    def evaluates(self) -> bool:
        """Tell whether the job evaluates; else it predicts, or a program processes the records."""
        return self.settings.task == TaskKind.EVALUATE

    @property
    def done_word(self) -> str:
        """Return what has happened to records that are done."""
        words = {TaskKind.EVALUATE: "evaluated", TaskKind.PROCESS: "processed"}
        return words.get(self.settings.task, "predicted")

    @property
    def why_finished(self) -> str:
        """Return why there was nothing more to do."""
        return f"all data was {self.done_word}"

    @property
    def is_done(self) -> bool:
        """Tell whether all tasks are done, also those whose workers have not repeated their results to this master."""
        if (
            self.loaded
            or STATE in self.journal.evaluated
            or isinstance(self.journal.terminal, FinishedRecord)
        ):
            return True
        return self.tasks is not None and self.tasks.is_whole

    @property
    def tasks_done(self) -> int:
        """Return how many tasks are done."""
        if self.tasks is None:
            return 0
        return self.tasks.tasks if self.is_done else len(self.tasks.results)

    @property
    def records_done(self) -> int:
        """Return how many records the tasks have that are done."""
        if self.plan is None or self.tasks is None:
            return 0
        return (
            self.plan.num_records
            if self.is_done
            else sum(map(self.plan.num_task_records, self.tasks.results))
        )

    # ------------------------------------------------------------------ the transition

    def _connect(self, connection: int, member: MemberId, name: str) -> Self:
        return replace(self, links={**self.links, connection: TaskLink(member=member, name=name)})

    def _disconnect(self, now: float, connection: int) -> Self:
        links = dict(self.links)
        link = links.pop(connection, None)
        if link is None:
            return self
        liveness = self.liveness.disconnected(now, link.member, connection)
        return replace(self, links=links, liveness=liveness)

    def _beat(self, now: float, beat: Beat) -> Self:
        return replace(self, liveness=self.liveness.beaten(now, beat))

    def _act(self, now: float, out: Out) -> Self:
        """Give the tasks of a worker that seems to hang to others, and replace it; should it live, that does no harm."""
        if self.tasks is None or self.journal.terminal is not None:
            return self
        master, tasks = self, self.tasks
        busy = tasks.busy()
        times, took = self.settings.times, tasks.took
        for member, why in self.liveness.suspected(now, times, took, busy).items():
            name = self.liveness.seen[member].name
            out.append(
                Announce(EventKind.EVICTED, name, 0, 0, f"{name} is left out: {why}; others do its tasks")
            )
            out.append(Kill(name, why))
            master = master._without(member)
        return master

    def _without(self, member: MemberId) -> Self:
        return replace(self._freed(member), liveness=self.liveness.without(member))

    def _freed(self, member: MemberId) -> Self:
        """Return what holds when others are to do what a member had to."""
        tasks = None if self.tasks is None else self.tasks.free(member)
        return replace(self, tasks=tasks, loader=None if self.loader == member else self.loader)

    # ------------------------------------------------------------------ the journal

    def _contradiction(self, journal: Journal) -> str | None:
        if journal.view is not None or journal.entries:
            return "it is of a job that trains"
        return None

    def _with_data(self, shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Self:
        plan: OnePass = self.settings.plan(shards, validation)
        tasks = Evaluation(STATE, plan.num_tasks, self.started_at, self.metrics, kind=self.settings.task)
        return replace(self, plan=plan, tasks=tasks)

    def _appended(self, now: float, before: Journal, record: Record, out: Out) -> Self:
        if isinstance(record, EvaluatedRecord):
            out.append(evaluated(record))
        return super()._appended(now, before, record, out)

    def _wanted_own(self, now: float) -> Record | None:
        if self.settings.checkpoint and self.journal.checkpoint is None:
            return CheckpointRecord(self.settings.checkpoint)
        tasks = self.tasks
        if tasks is None or tasks.evaluated is None or STATE in self.journal.evaluated:
            return None
        return EvaluatedRecord(STATE, tasks.evaluated.values, now - tasks.began_at)

    def _waits(self) -> bool:
        return True

    # ------------------------------------------------------------------ what comes in

    def _impossible(self, link: Any, message: MemberMessage) -> str | None:
        match message:
            case Enroll(server=server, roll_back=roll_back) if server is not None or roll_back:
                return "there are no parameter servers"
            case Enroll(holds=holds) if holds and not self._is_load(holds):
                return f"it can't hold {holds}"
            case AtGate(view, state) if (view, state) != (NO_VIEW, STATE):
                return f"there is no state {state}"
            case AtGate(metrics=metrics):
                return self._no_metrics(metrics)
            case TaskResult(state=state) | Evaluated(state=state) if state != STATE:
                return f"there is no state {state}"
            case TaskResult():
                return self._no_result(message)
            case Evaluated() if not self.evaluates:
                return "nothing is evaluated"
            case Enroll() | Leave() | FoundShards() | Note() | ProgramFailed() | StopJob() | Evaluated():
                return None
        return "the job trains nothing"

    def _is_load(self, holds: tuple[Holding, ...]) -> bool:
        is_known = self.plan is None or holds == ((self.plan.num_tasks, 0),)
        return bool(self.settings.table) and len(holds) == 1 and is_known

    def _no_metrics(self, metrics: str) -> str | None:
        if not self.evaluates:
            return "nothing is evaluated" if metrics else None
        return bad_metrics(metrics, self.metrics or None, self.settings.result_size)

    def _no_result(self, result: TaskResult) -> str | None:
        if self.plan is not None and result.task >= self.plan.num_tasks + bool(self.settings.table):
            return f"task {result.task}, of {self.plan.num_tasks}"
        if not self.evaluates:
            return "what is written to a file has no body" if result.body else None
        tasks = self.tasks
        if tasks is None or not tasks.metrics:
            return None  # it counts for nothing
        return bad_result(result, self.plan, tasks, self.settings.result_size)

    def _hear(self, now: float, connection: int, link: TaskLink, message: MemberMessage, out: Out) -> Self:
        match message:
            case Enroll():
                return self._enroll(now, connection, link, message, out)
            case FoundShards(shards, validation, plan):
                return self._find(ShardsRecord(shards, validation, plan), link.name)
            case AtGate(metrics=metrics):
                return self._take_ready(now, link, metrics)
            case TaskResult(task=task, body=body):
                return self._take_result(now, link, task, body)
            case Evaluated():
                return self._take_metrics(now, link, message)
            case Leave():
                return self._let_leave(link, out)
            case StopJob(reason):
                return self._hear_stop(connection, reason, out)
            case Note(kind, view, step, text, seconds):
                out.append(Announce(kind, link.name, view, step, text, seconds))
                return self
            case ProgramFailed():
                return self._note_failure(now, link, message)._without(link.member)
        return self

    def _enroll(self, now: float, connection: int, link: TaskLink, enroll: Enroll, out: Out) -> Self:
        if enroll.member not in self.liveness.seen:
            out.append(Announce(EventKind.JOINED, link.name, 0, 0, f"{link.name} has joined"))
        liveness = self.liveness.enrolled(now, enroll.member, link.name, connection, leaving=enroll.leaving)
        tasks = None if self.tasks is None else self.tasks.free(enroll.member)
        links = {**self.links, connection: replace(link, registered=True)}
        loader = enroll.member if enroll.holds and self.loader is None else self.loader
        return replace(self, liveness=liveness, tasks=tasks, links=links, loader=loader)

    def _take_ready(self, now: float, link: Link, metrics: str) -> Self:
        if link.member not in self.liveness.seen:
            return self
        tasks = None if self.tasks is None else replace(self.tasks, metrics=metrics)
        return replace(self, liveness=self.liveness.ready(now, link.member), tasks=tasks, metrics=metrics)

    def _take_result(self, now: float, link: Link, task: int, body: bytes) -> Self:
        tasks = self.tasks
        if tasks is None or (self.evaluates and not tasks.metrics):
            return self
        if task == tasks.tasks:
            return replace(self, loaded=True)._freed(link.member)._moved(now, link)
        tasks = tasks.with_result(now, link.member, task, body)
        master = replace(self, tasks=tasks)._moved(now, link)
        if not self.evaluates or not tasks.is_whole or self.added_up is not None:
            return master
        results = [tasks.results[number] for number in range(tasks.tasks)]
        return replace(master, added_up=self.settings.add_up(tasks.metrics, results))

    def _take_metrics(self, now: float, link: Link, said: Evaluated) -> Self:
        if self.tasks is None:
            return self
        return replace(self, tasks=self.tasks.free(link.member).with_metrics(said))._moved(now, link)

    def _moved(self, now: float, link: Link) -> Self:
        if link.member not in self.liveness.seen:
            return self
        return replace(self, liveness=self.liveness.moved(now, link.member))

    def _let_leave(self, link: Link, out: Out) -> Self:
        seen = self.liveness.seen.get(link.member)
        if seen is None:
            return self
        if not seen.leaving or self.tasks is None or not self.tasks.is_busy(link.member):
            out.append(
                Announce(EventKind.DRAINED, link.name, 0, 0, f"{link.name} has left; others do its tasks")
            )
        return replace(self._freed(link.member), liveness=self.liveness.leaves(link.member))

    def _process_ended(self, now: float, name: str, cause: str, out: Out) -> Self:
        if name in self.gone:
            return self
        master = replace(self, gone={**self.gone, name: cause})
        member = self.liveness.member(name)
        if member is None:
            return master
        if self.journal.terminal is None and not self.liveness.seen[member].leaving:
            text = f"{name} is lost: {cause}; others do its tasks"
            out.append(Announce(EventKind.LOST, name, 0, 0, text, None, cause))
        return master._without(member)

    # ------------------------------------------------------------------ the end

    def _has_committed(self) -> bool:
        return self.tasks_done > 0

    def _wanted_finish(self) -> Record | None:
        tasks = self.tasks
        if tasks is None:
            return None
        record = self.journal.evaluated.get(STATE)
        if self.evaluates:
            return None if record is None else FinishedRecord(NO_VIEW, STATE, "", "", record.values)
        is_done = self.loaded if self.settings.table else tasks.is_whole
        return FinishedRecord(NO_VIEW, STATE, self.settings.draft, "", ()) if is_done else None

    def _may_finish(self, exported: Exported) -> bool:
        return False

    def _all_gone(self) -> bool:
        return not self.liveness.seen

    # ------------------------------------------------------------------ what each connection is sent

    def _tell_all(self, now: float, concerned: int | None, out: Out) -> Self:
        links = dict(self.links)
        for connection, link in self.links.items():
            told = self._tell_everybody(connection, link, out)
            if self.journal.checkpoint is not None and not told.checkpoint and not told.verdict:
                self._tell(connection, UseCheckpoint(self.journal.checkpoint), out)
                told = replace(told, checkpoint=True)
            if told.registered and not told.welcomed and not told.verdict:
                self._tell(connection, Enrolled(self.journal.epoch, None), out)
                told = replace(told, welcomed=True)
            links[connection] = told
        return replace(self, links=links)._lease_tasks(now, out)

    def _lease_tasks(self, now: float, out: Out) -> Self:
        if self.tasks is None or self.journal.stopping is not None or self.journal.terminal is not None:
            return self
        if self.settings.table and (self.loaded or self.tasks.is_whole):
            return self if self.loaded else self._lease_load(now, out)
        liveness, connections = self.liveness, {}
        for connection, member in liveness.at_work():
            if self.links[connection].welcomed:
                connections[member] = connection
        busy, sharing = self.tasks.busy(), max(len(connections), self.wanted)
        tasks, dealt = self.tasks.dealt(now, list(connections), sharing, self.added_up)
        for member, leased in dealt:
            if member not in busy:
                liveness = liveness.moved(now, member)
            self._tell(connections[member], leased, out)
        return replace(self, tasks=tasks, liveness=liveness) if dealt else self

    def _lease_load(self, now: float, out: Out) -> Self:
        """Let one worker load the rows, and the same again on its next connection: two would only wait for each other."""
        if (
            self.loader is None
            and self.journal.epoch > 1
            and now - self.started_at < self.settings.times.alone
        ):
            return self  # somebody may have begun, and will say so
        tasks, load = self.tasks, None if self.tasks is None else self.tasks.load_for()
        for connection, member in self.liveness.at_work():
            if tasks is None or load is None or self.loader not in (None, member):
                continue
            if tasks.is_busy(member) or not self.links[connection].welcomed:
                continue
            self._tell(connection, load, out)
            if self.loader is None:
                name = self.liveness.seen[member].name
                text = f"all data is predicted; {name} loads it into {self.settings.table}"
                out.append(Announce(EventKind.NOTE, name, 0, 0, text))
            return replace(
                self,
                tasks=tasks.with_lease(now, member, load),
                liveness=self.liveness.moved(now, member),
                loader=member,
            )
        return self

    def _verdict(self, link: Any) -> Released | Finished | Failed | None:
        end = self.journal.terminal
        if isinstance(end, FinishedRecord):
            return Finished("the job is finished")
        if end is not None:
            return Failed(end.reason)
        seen = self.liveness.seen.get(link.member)
        is_busy = self.tasks is not None and self.tasks.is_busy(link.member)
        return Released("it has left") if seen is not None and seen.leaving and not is_busy else None
