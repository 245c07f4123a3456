"""A master's runner: brings events to the machine, and carries out what it says.

One thread owns machine, replica sets and history; all others put what happens into its queue. It decides nothing about training
(`master/allreduce/`, `master/ps/`) nor about processes (`master/processes/`). What it keeps is either in the journal or for people. What
depends on the way of training is in `allreduce.py` and `ps.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import queue
import shutil
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, assert_never

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.manifest import Manifest, write_manifest
from elasticdl.cluster.cluster import (
    Cluster,
    ClusterEvent,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
    ScaleAsked,
    StopAsked,
    process_name,
)
from elasticdl.cluster.local.place import Place
from elasticdl.control.protocol.messages import MemberMessage
from elasticdl.control.protocol.status import INTERRUPT, EventKind, JobEvent, JobStatus, how_many
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.control.transport.stream import (
    Answer,
    ControlServer,
    MemberClosed,
    MemberOpened,
    MemberSaid,
    ScaleWanted,
    ServerEvent,
    StopWanted,
)
from elasticdl.data.plan.order import dealing_of
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadInput, BadSetting, JobFailed
from elasticdl.master.core import auditmark
from elasticdl.master.core import events as machine_events
from elasticdl.master.core.journal import REPLACED, Journal
from elasticdl.master.core.journalwriter import JournalWriter, Outcome, Overtaken, Unwritten, Written
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.publishing import publish, remove_unpublished
from elasticdl.master.core.records import (
    FailedRecord,
    FinishedRecord,
    Record,
    ShardsRecord,
    StoppingRecord,
)
from elasticdl.master.core.witnesses import Times
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes import starting
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory, HistoryEvent
from elasticdl.master.reporting.statusstore import StatusStore
from elasticdl.spec.jobspec import JobSpec, Strategy
from elasticdl.spec.machine import check_scale

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 0.25
_LONGEST_STATUS_SECONDS = 1.0
_INDEXING_SECONDS = 2.0
_SNAPSHOT_SECONDS = 10.0
_NOTHING_TRAINED = "the job was stopped when nothing was trained: no result is written"


class Monitor(Protocol):
    """The master's end of the heartbeats (`elasticdl._core.HeartMonitor`)."""

    def poll(self) -> list[tuple[str, int, int, int, float, bool]]:
        """Return (member, view, step, progress, seconds since the last beat, connected?) of every member."""

    @property
    def refused(self) -> int:
        """Return how many connections were refused so far."""

    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """Return whom it has refused since the last call: (where from, why) of the first few, and the number of others."""

    def forget(self, member: str) -> None:
        """A member has ended for good."""

    def close(self) -> None:
        """Stop listening."""


@dataclass(frozen=True, slots=True)
class _DataOpened:
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class _DataLeft:
    """Only a worker can open the data."""


@dataclass(frozen=True, slots=True)
class _DataRefused:
    reason: str
    kind: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class _Indexing:
    done: int
    total: int


_Incoming = (
    ServerEvent
    | ClusterEvent
    | Outcome
    | _DataOpened
    | _DataLeft
    | _DataRefused
    | _Indexing
    | machine_events.ManifestWritten
)


class Runner(ABC):
    """One life of a job's master."""

    _tick_seconds: float
    """Time between two ticks: half of the shortest time that matters to the machine."""
    _status_seconds: float
    """Least time between two statuses of which only the figures differ."""

    def __init__(
        self,
        place: Place,
        spec: JobSpec,
        cluster: Cluster,
        journal: Journal,
        store: StatusStore,
        read: tuple[tuple[Record, ...], int],
        forces: Sequence[ReplicaSet],
        history: Sequence[ClusterEvent],
        monitor: Callable[[], Monitor],
        open_data: Callable[[Callable[[int, int], None]], tuple[Shard, ...] | None],
        facts: Callable[[], Mapping[str, Any]],
        told: Sequence[HistoryEvent],
    ) -> None:
        """Prepare; nothing runs before `run`.

        Args:
            place: the job's place.
            spec: its settings.
            cluster: where its workers live.
            journal: its journal.
            store: what it keeps for people.
            read: what `journal.read()` returned.
            forces: of each role that the master launches, the processes that run, or were asked to; workers first.
            history: what the cluster said until now.
            monitor: opens the heartbeats' socket.
            open_data: opens the data and returns its shards, None if only a worker can; told bytes indexed and bytes in all.
            facts: what the summary says beside what the master knows.
            told: what masters before this one told people.
        """
        self._place = place
        self._spec = spec
        self._cluster = cluster
        self._journal = journal
        self._read = read
        self._forces = {force.role: force for force in forces}
        self._history = list(history)
        self._make_monitor = monitor
        self._open_data = open_data
        self._facts = facts
        self._before = told

        self._inbox: queue.SimpleQueue[_Incoming] = queue.SimpleQueue()
        self._machine = self._make_machine()
        self._event_history = EventHistory(place.submitted_at)
        self._status_store = store
        self._requests = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._processes = Processes()
        self._told_ends: set[str] = set()
        self._data_since: float | None = None
        self._status_at = 0.0
        self._changed = True
        self._next_beat = 0.0
        self._indexing_at = 0.0
        self._next_snapshot_at = 0.0
        self._end: machine_events.End | None = None
        self._outputs: list[str] = []
        self._unpublished = False
        self._owns_audit = False

    def run(self) -> int:
        """Be the job's master until it ends or is replaced; return the exit code."""
        try:
            self._server = ControlServer(
                self._place.control_address, self._place.token(), self._inbox.put, self._place.identity
            )
            self._monitor = self._make_monitor()
            self._refusals = (
                RefusalLog(self._server, "control plane"),
                RefusalLog(self._monitor, "heartbeats"),
            )
        except BadInput as error:
            if self._read[1] == 0:
                raise
            # A job that runs does not end because its last master still holds a socket; the next attempt comes soon.
            _log.warning("%s", error)
            return REPLACED
        self._journal_writer = JournalWriter(self._journal, self._inbox.put)
        threading.Thread(target=self._find_data, name="data", daemon=True).start()
        threading.Thread(target=self._follow_cluster, name="cluster", daemon=True).start()
        self._recall()
        try:
            self._handle(machine_events.JournalRead(*self._read))
        except BadData as error:
            raise self._journal.contradicts(str(error)) from error
        self._resume_history()
        for record in self._read[0]:
            if isinstance(record, ShardsRecord):
                # A master before this one may have died between the record and the file.
                for refused in self._write_manifest(record.shards, again=True):
                    self._handle(refused)
        for past in self._history:
            self._take(past)
        self._take_up()
        for role in self._forces:
            self._direct(replicas.Tick(), role)
        tick = time.monotonic() + self._tick_seconds
        while self._end is None:
            with contextlib.suppress(queue.Empty):
                event = self._inbox.get(timeout=max(0.0, tick - time.monotonic()))
                # After a stall of this process the old beats would speak against everybody.
                self._listen()
                self._take(event)
            if time.monotonic() >= tick:
                self._tick()
                tick = time.monotonic() + self._tick_seconds
        return self._finish(self._end)

    def _take_up(self) -> None:
        """Do what the master before this one had begun and not finished."""
        journal = self._machine.journal
        if journal.stopping is not None and not journal.has_begun and journal.terminal is None:
            self._handle(machine_events.GiveUp(_NOTHING_TRAINED, "program"))
        lives = [life for force in self._forces.values() for life in force.lives()]
        self._handle(machine_events.Launched(tuple(lives)))

    # ------------------------------------------------------------------ what depends on the way of training

    @abstractmethod
    def _make_machine(self) -> MasterCore:
        """Return the machine of a master that knows nothing yet."""

    @abstractmethod
    def _resume_history(self) -> None:
        """Tell the history what the journal says."""

    @abstractmethod
    def _hear(self, connection: int, message: MemberMessage) -> None:
        """Take what a member says."""

    @abstractmethod
    def _is_ready(self, name: str) -> bool:
        """Tell whether a process has registered, or takes part as the journal says: then the machine judges it."""

    @abstractmethod
    def _lives_of(self, name: str) -> Collection[MemberId]:
        """Return the members that a process was."""

    @abstractmethod
    def _leaves_when_told(self, name: ProcessName) -> bool:
        """Tell whether the machine asks this process to leave, which then has the time that it needs; a pod has seconds after a signal."""

    @abstractmethod
    def _after_process(self) -> None:
        """Say what people should know when a process has ended."""

    @abstractmethod
    def _moment(self) -> Hashable:
        """Return what is shown at once when it has changed."""

    @abstractmethod
    def _after_record(self, record: Record) -> None:
        """Do what follows a durable record of this way of training, before any process learns of it."""

    @abstractmethod
    def _status(self, now: float) -> JobStatus:
        """Return how the job stands."""

    @abstractmethod
    def _complete_audit(self, record: FinishedRecord) -> None:
        """Write the end of the audit. Raises OSError."""

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """Return what the summary says of the group."""

    @property
    def _force(self) -> ReplicaSet:
        return self._forces[Role.WORKER]

    # ------------------------------------------------------------------ other threads

    def _follow_cluster(self) -> None:
        try:
            while True:
                for event in self._cluster.events(3600.0):
                    self._inbox.put(event)
        except (OSError, ValueError):
            _log.debug("the connection to the launcher has ended")

    def _find_data(self) -> None:
        if any(isinstance(record, ShardsRecord) for record in self._read[0]):
            return
        try:
            shards = self._open_data(lambda done, total: self._inbox.put(_Indexing(done, total)))
        except BadInput as error:
            self._inbox.put(_DataRefused(str(error), "bad-input"))
        except Exception as error:
            text = traceback.format_exc()
            self._inbox.put(_DataRefused(f"the data can't be opened: {error}", "program", text))
        else:
            self._inbox.put(_DataLeft() if shards is None else _DataOpened(shards))

    # ------------------------------------------------------------------ events in

    def _take(self, event: _Incoming) -> None:
        match event:
            case MemberSaid(connection, message):
                self._hear(connection, message)
            case MemberOpened(connection, worker, member):
                starts = self._processes.starts
                if worker in starts:
                    starts[worker] = replace(starts[worker], member=member)
                self._handle(machine_events.ConnectionOpened(connection, member, worker))
            case MemberClosed(connection):
                self._handle(machine_events.ConnectionLost(connection))
            case ProcessPending() | ProcessStarted() | ProcessEnded() | ProcessGone():
                self._process(event)
            case StopWanted(reason, answer):
                self._handle(machine_events.StopAsked(self._request(answer), reason))
            case StopAsked(reason):
                self._handle(machine_events.StopAsked(self._request(_log_answer), reason))
            case ScaleWanted(workers, servers, answer):
                self._scale(workers, servers, answer)
            case ScaleAsked(workers, servers):
                self._scale(workers, servers, _log_answer)
            case Written(append):
                self._after_append(append)
            case Unwritten():
                self._wait_for_journal(event)
            case Overtaken():
                self._handle(machine_events.Conflict())
            case _DataOpened(shards):
                for shard in shards:
                    if not shard.count:
                        self._tell(EventKind.NOTE, f"{shard.name} has no records")
                self._handle(machine_events.DataFound(shards))
            case _DataLeft():
                self._data_since = time.monotonic()
            case _DataRefused(reason, kind, text):
                self._handle(machine_events.GiveUp(reason, kind, "", text))
            case machine_events.ManifestWritten():
                self._handle(event)
            case _Indexing():
                self._show_indexing(event)
            case _:
                assert_never(event)

    def _scale(self, workers: int | None, servers: int | None, answer: Answer) -> None:
        try:
            check_scale(self._spec, workers, servers)
        except BadSetting as error:
            answer(False, str(error))
        else:
            self._handle(machine_events.ScaleAsked(self._request(answer), workers, servers))

    def _process(self, event: ProcessEvent) -> None:
        ended = self._processes.take(time.monotonic(), event)
        if ended is not None:
            self._take_end(ended)
        self._changed = True
        self._direct(event, event.name.role)

    def _take_end(self, ended: ProcessEnded | ProcessGone) -> None:
        name, cause = str(ended.name), replicas.cause_of(ended)
        if isinstance(ended, ProcessEnded):  # otherwise the group judges by its own witnesses (D2)
            self._handle(machine_events.WorkerEnded(name, cause))
            start = self._processes.starts.pop(name, None)
            for member in {*self._lives_of(name), *(() if start is None else (start.member,))} - {None}:
                self._monitor.forget(member)
        if name not in self._told_ends:
            self._tell(EventKind.ENDED, f"{name} has ended: {cause}", worker=name, cause=cause)
        self._after_process()

    def _request(self, answer: Answer) -> int:
        number = next(self._requests)
        self._answers[number] = answer
        return number

    def _tick(self) -> None:
        now = time.monotonic()
        self._listen()
        self._handle(machine_events.Tick())
        for role in self._forces:
            self._direct(replicas.Tick(), role)
        if now - self._status_at >= (self._status_seconds if self._changed else _LONGEST_STATUS_SECONDS):
            self._show_status()

    def _listen(self) -> None:
        """Hear the heartbeats, if that is due."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + _BEAT_SECONDS
        beats: dict[MemberId, float] = {}
        events = deque[machine_events.Event]()
        for member, view, step, progress, age, _ in self._monitor.poll():
            events.append(machine_events.Beat(MemberId(member), view, step, progress, age))
            beats[MemberId(member)] = now - age
        self._run(events)
        self._watch_starts(now, beats)
        for log in self._refusals:
            log.look(now)

    def _watch_starts(self, now: float, beats: Mapping[MemberId, float]) -> None:
        """Replace the processes that take too long to start."""
        starts = {name: start for name, start in self._processes.starts.items() if not self._is_ready(name)}
        self._processes.starts = starting.with_beats(starts, beats)
        if self._spec.distribution_strategy is Strategy.LOCAL:
            return  # the only process is the user's own, perhaps in a debugger
        if self._data_since is None and self._machine.journal.shards is not None:
            self._data_since = now
        limits = starting.Limits(self._machine.settings.times, self._spec.start_seconds, self._data_since)
        for late in starting.overdue(now, self._processes.starts, limits):
            if late.name in self._processes.unproven:
                continue  # nobody hears it now
            starts = self._processes.starts
            starts[late.name] = replace(starts[late.name], killed_at=now)
            name = process_name(late.name)
            if not late.hangs:
                self._direct(replicas.Unready(name, counts=not self._machine.journal.has_begun), name.role)
            self._tell(
                EventKind.REPLACED, f"{name} is killed while it starts: {late.reason}", worker=late.name
            )
            self._cluster.signal(name, signal.SIGKILL)

    # ------------------------------------------------------------------ the machine

    def _handle(self, event: machine_events.Event) -> None:
        self._run(deque([event]))

    def _run(self, events: deque[machine_events.Event]) -> None:
        """Give the machine events, and what comes of its instructions, until nothing is left."""
        moment = self._moment()
        while events:
            self._machine, instructions = self._machine.handle(time.monotonic(), events.popleft())
            for instruction in instructions:
                self._carry_out(instruction, events)
        # short moments (registered and not yet in the group, the final view) are seen by those who watch
        if self._moment() != moment:
            self._show_status()

    def _carry_out(
        self, instruction: machine_events.Instruction, events: deque[machine_events.Event]
    ) -> None:
        match instruction:
            case machine_events.Append() | machine_events.Check():
                self._journal_writer.take(instruction)
            case machine_events.Tell(connection, message):
                self._server.send(connection, message)
            case machine_events.Refuse(connection, reason):
                self._server.refuse(connection, reason)
            case machine_events.Reply(request, text):
                answer = self._answers.pop(request, None)
                if answer is not None:
                    answer(True, text)
            case machine_events.Publish(path):
                events.append(machine_events.Published(self._publish(path)))
            case machine_events.WriteManifest():
                # A volume that does not answer must not hold up the master.
                arguments = (instruction,)
                threading.Thread(target=self._write_cut, args=arguments, name="manifest", daemon=True).start()
            case machine_events.DropSnapshot(number):
                self._drop_snapshots([number])
            case machine_events.Kill(worker) if worker in self._processes.unproven:
                pass  # nobody hears it now, and should its node come back, it may have the last state
            case machine_events.Kill(worker) if not self._runs(process_name(worker)):
                pass  # it ended while there was no master to hear of it
            case machine_events.Kill(worker, reason):
                self._tell(EventKind.NOTE, f"{worker} is killed: {reason}", worker=worker)
                self._cluster.signal(process_name(worker), signal.SIGKILL)
            case machine_events.Scale(workers, servers):
                self._want(Role.WORKER, workers)
                self._want(Role.PS, servers)
            case machine_events.Announce():
                self._announce(instruction)
            case machine_events.End():
                self._end = instruction
            case _:
                assert_never(instruction)

    def _wait_for_journal(self, unwritten: Unwritten) -> None:
        """J2: no process learns anything that depends on the record until it is known to exist."""
        if isinstance(unwritten.error, JobFailed) and not self._machine.journal.has_begun:
            raise unwritten.error  # the job can't begin: its data has too many files
        why = f"{getattr(unwritten.error, 'strerror', None) or unwritten.error}: {self._journal.where}"
        self._tell(
            EventKind.NOTE, f"the journal can't be written ({why}): the group stays as it is until it can"
        )
        self._handle(machine_events.Unwritten(why))

    def _after_append(self, append: machine_events.Append) -> None:
        """Do what follows a durable record, before any process learns of it; then tell the machine."""
        if self._machine.unwritten:
            self._tell(EventKind.NOTE, "the journal can be written again")
        record, events = append.record, deque[machine_events.Event]()
        match record:
            case ShardsRecord(shards):
                events.extend(self._write_manifest(shards, again=False))
            case StoppingRecord():
                self._direct(replicas.Ending(stopping=True))
                if not self._machine.journal.has_begun:
                    events.append(machine_events.GiveUp(_NOTHING_TRAINED, "program"))
            case FinishedRecord() | FailedRecord():
                for role in self._forces:
                    self._direct(replicas.Over(), role)
            case _:
                self._after_record(record)
        events.append(machine_events.Appended(record))
        self._run(events)

    # ------------------------------------------------------------------ processes

    def _want(self, role: Role, number: int | None) -> None:
        """See to it that so many processes of a role run."""
        if number is None:
            return
        if number != self._forces[role].wanted:
            said = how_many(number, None) if role is Role.WORKER else how_many(None, number)
            self._tell(EventKind.SCALED, f"the job wants {said} from now on")
        self._direct(replicas.Wanted(number), role)

    def _direct(self, event: replicas.Event, role: Role = Role.WORKER) -> None:
        """Ask which processes of a role should run, and see to it."""
        before = self._forces[role]
        force, instructions, reason = replicas.decide(time.monotonic(), before, event)
        self._forces[role] = force
        replica = force.replicas.get(event.name.index) if isinstance(event, ProcessEnded) else None
        if (replica is not None and replica.short > 1) or force.memory > before.memory:
            # People wait for a worker that ends again and again before it joins, and pay for memory.
            self._tell(EventKind.NOTE, reason)
        elif reason:
            _log.debug("%s", reason)
        for instruction in instructions:
            match instruction:
                case replicas.Launch(name, memory):
                    self._cluster.launch(name, memory)
                    self._tell(EventKind.LAUNCHED, f"{name} is started", worker=str(name))
                    self._handle(machine_events.Launched((name,)))
                case replicas.Retire(name):
                    if not self._leaves_when_told(name):
                        self._cluster.signal(name, signal.SIGTERM)
                case replicas.GiveUp(name, why):
                    self._handle(machine_events.GiveUp(why, "program", str(name), self._last_words(name)))
                case _:
                    assert_never(instruction)
        self._changed = self._changed or bool(instructions)

    def _runs(self, name: ProcessName) -> bool:
        return name in self._forces[name.role].running()

    def _last_words(self, name: ProcessName) -> str:
        """Return the end of a worker's log: a crash leaves no traceback but this."""
        return self._processes.words.get(str(name)) or self._place.last_words(str(name))

    # ------------------------------------------------------------------ for people

    def _announce(self, announce: machine_events.Announce) -> None:
        kind, step = announce.kind, announce.step
        if kind == EventKind.STEP and (step < 1 or self._event_history.first_step_at is not None):
            return  # the status shows steps; only the first one is an event
        if kind == EventKind.SNAPSHOT and not self._spec.checkpoint_dir:
            # Epochs may last milliseconds; what matters to people is that there is a recent one. Checkpoints are there to stay.
            if time.monotonic() < self._next_snapshot_at:
                return
            self._next_snapshot_at = time.monotonic() + _SNAPSHOT_SECONDS
        given_up = (
            self._event_history.begin_again(step) if kind in (EventKind.VIEW, EventKind.ROLLED_BACK) else 0
        )
        self._tell(
            kind,
            announce.text,
            worker=announce.worker,
            view=announce.view,
            step=step,
            seconds=announce.seconds,
            cause=announce.cause,
            redone=given_up if announce.redone is None else announce.redone,
        )
        if kind == EventKind.STEP:
            self._show_status()  # people wait for the first loss

    def _tell(
        self,
        kind: EventKind,
        text: str,
        *,
        worker: str = "",
        view: int = 0,
        step: int = 0,
        seconds: float | None = None,
        cause: str = "",
        redone: int = 0,
    ) -> None:
        now = self._event_history.next_time(time.time())
        told = HistoryEvent(JobEvent(now, kind, worker, view, step, text, seconds), cause, redone)
        self._event_history.tell(told)
        self._server.publish(told.event)
        _log.info("%s: %s", kind, text)
        self._changed = True
        self._status_store.tell(told)

    def _recall(self) -> None:
        """Take up what masters before this one told."""
        if not self._read[1]:
            return
        for told in self._before:
            if told.event.kind == EventKind.ENDED:
                self._told_ends.add(told.event.worker)
            self._event_history.tell(told)
            self._server.publish(told.event)
        self._tell(EventKind.MASTER, "the master is back and has read its journal")

    def _show_indexing(self, indexing: _Indexing) -> None:
        now = time.monotonic()
        if self._indexing_at == 0.0:
            self._indexing_at = now
        if now - self._indexing_at >= _INDEXING_SECONDS:
            self._indexing_at = now
            share = indexing.done / max(1, indexing.total)
            self._tell(EventKind.NOTE, f"indexing the data: {share:.0%} of {indexing.total / 1e9:.1f} GB")

    def _show_status(self) -> None:
        self._status_at, self._changed = time.monotonic(), False
        status = self._status(self._status_at)
        self._server.publish(status)
        self._status_store.show(status)

    # ------------------------------------------------------------------ files

    def _write_cut(self, cut: machine_events.WriteManifest) -> None:
        """Complete a snapshot of slots; on a thread of its own."""
        journal = self._machine.journal
        assert journal.shards is not None, "slots are cut when something is trained"
        assert journal.model is not None, "slots are placed when the model is known"
        directory = Path(cut.directory)
        manifest = Manifest(
            number=cut.number,
            job=self._place.name,
            written_at=time.time(),
            low=cut.position.low,
            above=cut.position.above,
            roll_back=cut.roll_back,
            dealing=dealing_of(self._spec, journal.shards),
            model=json.loads(journal.model),
            sections=tuple((Path(file), section) for file, section in cut.sections),
            step=cut.step,
            begun=cut.begun,
        )
        try:
            write_manifest(checkpoints.draft_of(directory, cut.number), manifest)
            path = checkpoints.publish(directory, cut.number)
        except OSError as error:
            why = error.strerror or str(error)
            self._inbox.put(machine_events.ManifestWritten(cut.number, "", why))
        else:
            self._inbox.put(machine_events.ManifestWritten(cut.number, str(path)))

    def _drop_snapshots(self, numbers: Sequence[int]) -> None:
        """Remove what is left of snapshots of slots that were given up."""
        directory = self._place.snapshots(self._spec)
        if directory is not None:
            arguments = (directory, numbers)
            threading.Thread(
                target=checkpoints.remove_drafts, args=arguments, name="snapshots", daemon=True
            ).start()

    def _write_manifest(self, shards: tuple[Shard, ...], again: bool) -> list[machine_events.GiveUp]:
        spec = self._spec
        if not spec.audit:
            return []
        try:
            auditmark.write_manifest(
                Path(spec.audit),
                shards,
                seed=spec.seed,
                records_per_task=spec.minibatch_size * spec.num_minibatches_per_task,
                minibatch_size=spec.minibatch_size,
                num_epochs=spec.num_epochs,
                has_servers=spec.num_ps_pods > 0,
                again=again,
            )
        except BadInput as error:
            return [machine_events.GiveUp(str(error), "bad-input")]
        except OSError as error:
            text = f"--audit: {spec.audit} can't be written: {error.strerror}"
            return [machine_events.GiveUp(text, "bad-input")]
        self._owns_audit = True
        return []

    def _publish(self, path: str) -> str | None:
        """Put the result in its place, and complete the audit; return what failed, or None."""
        record = self._machine.journal.terminal
        assert isinstance(record, FinishedRecord)
        if path:
            output = Path(self._spec.output)
            try:
                publish(Path(path), output)
            except OSError as error:
                self._unpublished = True
                return f"the model is at {path}, and can't be put in its place ({error.strerror}: {error.filename})"
            self._outputs = [str(output)]
            self._tell(EventKind.EXPORTED, f"the model is at {output}", step=record.state.step)
        if self._spec.audit and self._machine.journal.has_begun:
            try:
                self._complete_audit(record)
            except OSError as error:
                return (
                    f"the job is done, and its audit can't be completed ({error.strerror}: {error.filename})"
                )
        return None

    # ------------------------------------------------------------------ the end

    def _finish(self, end: machine_events.End) -> int:
        if end.status == "replaced":
            # The socket and the files are the other master's by now.
            self._journal_writer.close()
            _log.warning("this master is replaced: %s", end.reason)
            return REPLACED
        status, code = end.status, end.exit_code
        interrupted = INTERRUPT in (self._machine.journal.stopping, self._machine.asked_stop)
        reason, record = end.reason, self._machine.journal.terminal
        if isinstance(record, FinishedRecord) and record.state.step == 0:
            status, code, reason = "failed", 1, f"{_NOTHING_TRAINED} ({reason})"
        if interrupted and (isinstance(record, FinishedRecord) or not self._machine.journal.has_begun):
            status, code = "interrupted", 130
        self._show_status()
        self._write_summary(status, reason, code)
        self._journal_writer.close()
        self._server.close()
        self._monitor.close()
        self._clean()
        return code

    def _write_summary(self, status: str, reason: str, code: int) -> None:
        record = self._machine.journal.terminal
        figures = self._figures()
        body: dict[str, Any] = {
            "job": self._place.name,
            "status": status,
            "reason": reason,
            "exit_code": code,
        }
        body |= self._event_history.summary(time.time())
        body.update(self._facts())
        body["members"] = {"joined": figures.pop("joined"), **body["members"]}
        body["refused_connections"] = self._server.refused + self._monitor.refused
        body |= figures
        body["metrics"] = {}
        body["outputs"] = self._outputs
        if isinstance(record, FinishedRecord):
            if record.state.step == 0:
                body["loss"] = None
            body |= {"steps": record.state.step, "metrics": dict(record.metrics), "digest": record.digest}
        if isinstance(record, FailedRecord):
            body |= {"traceback": record.traceback, "failed_worker": record.worker}
        self._status_store.conclude(body)

    def _clean(self) -> None:
        """Remove what only a running job needs."""
        shutil.rmtree(self._place.path / "data", ignore_errors=True)
        self._clean_snapshots()
        if self._spec.output and not self._unpublished:
            remove_unpublished(Path(self._spec.output))
        if self._owns_audit and not self._machine.journal.has_begun:
            auditmark.remove(Path(self._spec.audit))

    def _clean_snapshots(self) -> None:
        """Remove snapshots, which serve a running job only."""
        folder = self._place.snapshots(self._spec)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _log_answer(accepted: bool, text: str) -> None:
    """Answer somebody who asked by an annotation: what comes of it is seen in the status."""
    _log.log(logging.INFO if accepted else logging.ERROR, "%s", text)


def times_of(spec: JobSpec) -> Times:
    """Return the times of the protocol that a job wants."""
    return replace(
        Times(),
        heartbeat=spec.heartbeat_seconds,
        alone=spec.witness_seconds,
        stall=spec.stall_seconds,
        stall_steps=spec.stall_steps,
        moment=spec.moment_seconds,
    )
