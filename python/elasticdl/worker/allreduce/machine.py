"""The synchronous member as a pure state machine: events in, instructions out (`worker/events.py` has both vocabularies).

It holds every rule of a member (M1–M8, S1, G1–G7 and the member's side of D5, D7, D10, as the notes on the protocol number them) and
nothing else: no I/O, no thread, no clock. The loop of the worker process and the simulator drive the same class. Each rule is a small
method of its own, so that a test can replace one of them by a mistake and see that the simulator finds it. What can be known without
the rest is in values: `accumulator.py` (what is added up), `gate.py` (the evaluation of a state), `outstanding.py` (work that has not come
back), `snapshots.py` (parts of saved states).

One file because the rules bind each other: what was promised (S1) decides what may be installed, contributed, committed and said, and each
of these changes what may be promised, so that no rule can be checked without the others beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    AtGate,
    Cut,
    Data,
    Evicted,
    Exported,
    Failed,
    Finished,
    GateOpen,
    Lost,
    MasterMessage,
    MemberMessage,
    NewView,
    NextView,
    Pending,
    ProgramFailed,
    Progress,
    Register,
    Released,
    Report,
    Saved,
    Stop,
    StopJob,
    TaskKind,
    TaskLeased,
    Verdict,
    Welcome,
)
from elasticdl.control.protocol.view import SNAPSHOT, MemberId, StateId, View, ViewId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.worker.allreduce.accumulator import NOTHING, Accumulator
from elasticdl.worker.allreduce.gate import StateGate, gate_of
from elasticdl.worker.allreduce.outstanding import Outstanding, Work
from elasticdl.worker.allreduce.snapshots import Saving, Snapshots
from elasticdl.worker.events import (
    Applied,
    ChunkComputed,
    ChunkEvaluated,
    CloseView,
    Commit,
    Compute,
    ComputeMetrics,
    Connected,
    Contribute,
    Contribution,
    Disconnected,
    DrainRequested,
    EndTraining,
    Evaluate,
    Event,
    Exit,
    Export,
    ExportWritten,
    GatePassed,
    Heal,
    Healed,
    HealeeLeft,
    HealFailed,
    Instruction,
    MetricsComputed,
    OpenView,
    PartWritten,
    PassGate,
    ProgramError,
    Received,
    RingCompleted,
    RingFailed,
    Send,
    ServeState,
    StopRequested,
    TakePart,
    Tick,
    Trailer,
    WorkCancelled,
)

Out = list[Instruction]
"""Instructions of one transition, in order; made and emptied within `handle`."""

NO_VIEW = ViewId(0)

PATIENCE = 10
"""Ticks (about a second each) that the last member waits until its state is saved, before it asks the master again."""


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Member:
    """One member: what it knows, what it holds, what it has promised.

    Attributes:
        id: its member id.
        name: what people call it.
        address: where its data plane listens.
        schedule: the order of the data, equal in all members.
        saving: when states are saved; None: there is no place for them.
        metrics: what the result of an evaluation task consists of, as text.
        epoch: highest master epoch seen.
        connected: there is a control stream, to a master whose epoch is not lower than `epoch`.
        view: the view installed last.
        rank: my place in it.
        sealed: highest view id in which I have promised to take no further part; only grows.
        report: the promise, once it has been made in full and until it is answered by a new view.
        parked: a view that is installed as soon as the work of the old one has come back.
        pending: highest view id of which the master wants a change.
        state: id of my state, None if blank.
        position: position of that state.
        whole: my state is the view's base or a later one of this view.
        accumulator: what is added up for step `state.step + 1`.
        gate: that of my state, if it has one.
        contributed: my contribution to the step under way has been handed over (M3: once).
        result: trailer of the completed ring that waits to be committed.
        healees: members that heal from me in this view (M5, M7).
        outstanding: work that has not come back.
        draining: SIGTERM came.
        snapshots: my parts of saved states.
        ticks: since this view was installed, or since the last member began to save its state.
        exported: the written result, until the job's end or a new view.
        stop: my wish for an early end, until it is acknowledged.
        failure: my program error; from then on nothing else happens here (D10).
        ended: the process was ordered to end.
    """

    id: MemberId
    name: str
    address: str
    schedule: Schedule
    saving: Saving | None = None
    metrics: str = ""
    epoch: int = 0
    connected: bool = False
    view: View | None = None
    rank: int = 0
    sealed: ViewId = NO_VIEW
    report: Report | None = None
    parked: View | None = None
    pending: ViewId = NO_VIEW
    state: StateId | None = None
    position: Position | None = None
    whole: bool = False
    accumulator: Accumulator = NOTHING
    gate: StateGate = field(default_factory=StateGate)
    contributed: bool = False
    result: Trailer | None = None
    healees: frozenset[MemberId] = frozenset()
    outstanding: Outstanding = field(default_factory=Outstanding)
    draining: bool = False
    snapshots: Snapshots = field(default_factory=Snapshots)
    ticks: int = 0
    exported: Exported | None = None
    ended_training: bool = False
    stop: StopJob | None = None
    failure: ProgramFailed | None = None
    ended: Exit | None = None

    # ------------------------------------------------------------------ what follows from the state

    @property
    def current(self) -> ViewId:
        """Return the id of the view installed last, 0 = none."""
        return NO_VIEW if self.view is None else self.view.id

    @property
    def active(self) -> bool:
        """Tell whether I take part in my view: installed and not sealed."""
        return self.view is not None and self.sealed < self.view.id

    @property
    def beat(self) -> tuple[int, int, int]:
        """Return what the heartbeat says: view, step under way, progress."""
        view, progress = self.view, self.outstanding.progress
        return (NO_VIEW, 0, progress) if view is None else (view.id, self._step(view), progress)

    def _step(self, view: View) -> int:
        """Return the number of the step under way."""
        return (self.state.step if self.whole and self.state is not None else view.base.step) + 1

    def _at(self, view: View) -> Position:
        """Return the position of the step under way."""
        return self.position if self.whole and self.position is not None else view.position

    def _owned(self, view: View) -> frozenset[int]:
        return view.owned(self.rank, self._step(view), self._at(view).lanes)

    def _is_closed(self) -> bool:
        """G1: nothing is computed from my state, or committed, before its gate has been passed."""
        if (
            self.schedule.evaluation is None
            or self.gate.passed
            or self.state is None
            or self.position is None
        ):
            return False
        return self.schedule.is_gate(self.position, self.state.step)

    def _ended_data(self) -> bool:
        return (
            self.state is not None
            and self.position is not None
            and self.schedule.ended(self.position, self.state.step)
        )

    # ------------------------------------------------------------------ the transition

    def handle(self, event: Event) -> tuple[Member, tuple[Instruction, ...]]:
        """Take an event; return the next state and what is to be done, in order."""
        if self.ended is not None:
            return self, ()
        out: Out = []
        member = self._take(event, out)
        if member.ended is None and member.failure is None:
            member = member._proceed(out)
        return member, tuple(out)

    def _take(self, event: Event, out: Out) -> Member:
        match event:
            case Received(message):
                return self._hear(message, out)
            case (
                ChunkComputed()
                | RingCompleted()
                | RingFailed()
                | Applied()
                | Healed()
                | HealFailed()
                | ChunkEvaluated()
                | MetricsComputed()
                | GatePassed()
                | ExportWritten()
            ):
                return self._come_back(event, out)
            case WorkCancelled():
                return self._cancel(out)
            case HealeeLeft(view, healee):
                return self._lose_healee(view, healee)
            case PartWritten(saved):
                return self._written(saved, out)
            case Connected():
                return replace(self, connected=True, gate=self.gate.unsaid())._greet(out)
            case Disconnected():
                return replace(self, connected=False)
            case DrainRequested():
                return self._drain(out)
            case StopRequested(reason):
                return self._ask_stop(reason, out)
            case ProgramError():
                return self._fail(
                    ProgramFailed(event.kind, event.signature, event.chunk, event.traceback), out
                )
            case Tick():
                self._repeat(out)
                return replace(self, ticks=self.ticks + 1, snapshots=self.snapshots.ticked())
        assert_never(event)

    # ------------------------------------------------------------------ the control stream

    def _send(self, message: MemberMessage, out: Out) -> None:
        if self.connected:
            out.append(Send(message))

    def _greet(self, out: Out) -> Member:
        """Open a connection: say who I am and what I hold, then everything that is unanswered."""
        if self.failure is None:
            self._register(out)
        self._repeat(out)
        return self

    def _register(self, out: Out) -> None:
        # a wish to stop is said before a promise, also to a new master: the view that answers it should be the last one
        report = self._promised() if self.stop is None else None
        if report is None:
            # while it is open which state a cancelled heal leaves behind, the promise has not been made
            sealed = self.sealed if self.view is None else ViewId(min(self.sealed, self.view.id - 1))
            report = self._report(sealed)
        self._send(Register(self.id, self.name, self.address, self.epoch, report), out)

    def _report(self, sealed: ViewId) -> Report:
        return Report(self.current, sealed, self.state, self.position, self.accumulator.lanes, self.draining)

    def _promised(self) -> Report | None:
        return None if self.active else self.report

    def _repeat(self, out: Out) -> None:
        """Say again what is unanswered; promises are repeated unchanged (S1)."""
        if self.failure is not None:
            self._send(self.failure, out)
            return
        if self.stop is not None:
            self._send(self.stop, out)  # before a promise, as above
        if self.report is not None:
            self._send(NextView(self.report), out)
        for saved in self.snapshots.saved:
            self._send(saved, out)
        if self.active and self.exported is not None:
            self._send(self.exported, out)

    def _hear(self, message: MasterMessage, out: Out) -> Member:
        if isinstance(message, Verdict):
            return self._obey(message, out)
        if isinstance(message, Welcome):
            if message.epoch < self.epoch:
                return replace(self, connected=False)  # a replaced master; it hears my epoch and goes
            return replace(self, epoch=message.epoch)
        if not self.connected:
            return self
        match message:
            case NewView(view):
                return self._offer(view)
            case Pending(view_id):
                return replace(self, pending=max(self.pending, view_id))
            case Stop(view_id):
                return self._stop(view_id, out)
            case Acknowledged(what):
                return self._acknowledge(what, out)
            case TaskLeased():
                return self._lease(message, out)
            case GateOpen():
                return replace(self, gate=self.gate.open(message))
            case Data():
                return self  # the loop has built `schedule` from it
        raise AssertionError(f"not a message of a master: {message}")

    def _acknowledge(self, what: str, out: Out) -> Member:
        snapshots = self.snapshots.acknowledged(what)
        if snapshots is not self.snapshots:
            return replace(self, snapshots=snapshots)
        if what == "stop_job":
            return replace(self, stop=None)
        if what == "failed" and self.failure is not None:
            return self._exit(1, "a program error; the worker may be started once more", out)
        return self

    def _obey(self, verdict: Verdict, out: Out) -> Member:
        """End as told: every verdict is in the journal."""
        match verdict:
            case Evicted(reason):
                return self._exit(EVICTED, reason, out)
            case Released(reason):
                return self._exit(RELEASED, reason, out)
            case Finished(reason):
                return self._end_training(out)._exit(FINISHED, reason, out)
            case Failed(reason):
                bad_input = self.failure is not None and self.failure.kind == "bad-input"
                return self._exit(2 if bad_input else 1, reason, out)
        raise AssertionError(f"not a verdict: {verdict}")

    def _exit(self, code: int, reason: str, out: Out) -> Member:
        ended = Exit(code, reason)
        out.append(ended)
        return replace(self, ended=ended)

    def _drain(self, out: Out) -> Member:
        if self.draining:
            return self
        report = None if self.report is None else replace(self.report, draining=True)
        member = replace(self, draining=True, report=report)
        if member.failure is None:
            member._register(out)
            if report is not None:
                member._send(NextView(report), out)
        return member

    def _ask_stop(self, reason: str, out: Out) -> Member:
        if self.stop is not None or self.failure is not None:
            return self
        return self._say_stop(reason, out)._seal_to_stop(out)

    def _say_stop(self, reason: str, out: Out) -> Member:
        if self.stop is not None or self.failure is not None:
            return self
        stop = StopJob(reason)
        self._send(stop, out)
        return replace(self, stop=stop)

    def _seal_to_stop(self, out: Out) -> Member:
        """Every member runs the same callbacks on the same figures, so all seal here, and this step is the last one."""
        if not self.active or self.failure is not None:
            return self
        return self._seal(self.current, not self.outstanding.contributes, out)

    # ------------------------------------------------------------------ views

    def _offer(self, view: View) -> Member:
        """Remember a view that may be installed; a later one takes its place."""
        if self.failure is not None or not self._may_install(view):
            return self
        if self.parked is not None and self.parked.id >= view.id:
            return self
        return replace(self, parked=view)

    def _may_install(self, view: View) -> bool:
        """M1: it names me, and it is newer than all that I have installed or sealed."""
        return view.rank(self.id) is not None and view.id > self.sealed and view.id > self.current

    def _install(self, view: View, out: Out) -> Member:
        rank = view.rank(self.id)
        assert rank is not None
        whole = self.state == view.base
        keep = self._keeps_accumulator(view, rank)
        healees = frozenset(
            peer.id for peer, source in zip(view.members, view.sources, strict=True) if source == self.id
        )
        member = replace(
            self,
            view=view,
            rank=rank,
            report=None,
            parked=None,
            whole=whole,
            position=view.position if whole else self.position,
            accumulator=self.accumulator if keep else NOTHING,
            contributed=False,
            result=None,
            healees=healees,
            snapshots=self.snapshots.in_view(),
            exported=None,
            ticks=0,
        )
        out.append(OpenView(view, keep))
        if whole:
            _serve(view, healees, out)
        source = view.sources[rank]
        if not whole and source is not None:
            heal = Heal(
                view.id, view.base, view.position, source, view.snapshot if source == SNAPSHOT else None
            )
            out.append(heal)
            member = replace(member, outstanding=replace(self.outstanding, heal=heal))
        return member

    def _keeps_accumulator(self, view: View, rank: int) -> bool:
        """M2: only for the base that it was computed on, and only if every chunk in it is mine in the first step."""
        owned = view.owned(rank, view.base.step + 1, view.position.lanes)
        return self.state == view.base and self.accumulator.lanes <= owned

    # ------------------------------------------------------------------ sealing

    def _stop(self, view: ViewId, out: Out) -> Member:
        """S1: promise to take no part in any view up to `view`, also in one that I have not received."""
        if self.failure is not None or view < self.current:
            return self
        if view <= self.sealed:
            if self.report is not None:
                self._send(NextView(self.report), out)
            return self
        return self._seal(view, not self.outstanding.contributes, out)

    def _seal(self, view: ViewId, linger: bool, out: Out) -> Member:
        """S1: there is no way back; the question follows in `_proceed`."""
        sealed = ViewId(max(self.sealed, self.current, view))
        out.append(CloseView(sealed, linger))
        parked = self.parked if self.parked is not None and self.parked.id > sealed else None
        return replace(
            self,
            sealed=sealed,
            parked=parked,
            report=None,
            contributed=False,
            result=None,
            healees=frozenset(),
        )

    def _abort(self, accused: MemberId | None, how: str, out: Out) -> Member:
        """Every abort ends the view, also if nobody died."""
        assert self.view is not None
        self._send(Lost(self.view.id, self._step(self.view), accused, how), out)
        return self._seal(self.view.id, False, out)

    def _promise(self, out: Out) -> Member:
        report = self._report(self.sealed)
        self._send(NextView(report), out)
        return replace(self, report=report)

    # ------------------------------------------------------------------ work that comes back

    def _come_back(
        self,
        event: ChunkComputed
        | RingCompleted
        | RingFailed
        | Applied
        | Healed
        | HealFailed
        | ChunkEvaluated
        | MetricsComputed
        | GatePassed
        | ExportWritten,
        out: Out,
    ) -> Member:
        """Take the outcome of a piece of work; one whose view was sealed meanwhile has no effect but what it left in memory."""
        work, heal = self.outstanding.work, self.outstanding.heal
        match event:  # first what comes in every step
            case ChunkComputed():
                return self._count_chunk(event) if isinstance(work, Compute) else self
            case RingCompleted(view, step, trailer):
                if not isinstance(work, Contribute) or (work.view, work.step) != (view, step):
                    return self
                result = trailer if self._may_commit_in(view) else self.result
                return self._back(heal=False, result=result)
            case Applied(state, stop):
                if not isinstance(work, Commit) or work.state != state:
                    return self
                after = self._back(heal=False)
                if not stop:
                    return after._after_commit(work, out)
                # The wish comes before any promise, so that the view that answers is the last one.
                return after._say_stop(stop, out)._after_commit(work, out)._seal_to_stop(out)
            case Healed(view):
                if heal is None or heal.view != view:
                    return self
                return self._back(heal=True)._healed(event, out)
            case HealFailed(view, how):
                if heal is None or heal.view != view:
                    return self
                after = self._back(heal=True)
                is_wanted = after.active and after.failure is None
                return after._abort(MemberId(heal.source), how, out) if is_wanted else after
            case RingFailed(view, _, accused, how):
                if not isinstance(work, Contribute) or work.view != view:
                    return self
                after = self._back(heal=False)
                is_wanted = after.active and after.failure is None
                return after._break_ring(accused, how, out) if is_wanted else after
            case ChunkEvaluated():
                return self._back(heal=False)._evaluated(event, out) if isinstance(work, Evaluate) else self
            case MetricsComputed():
                is_mine = isinstance(work, ComputeMetrics)
                return self._back(heal=False)._computed_metrics(event, out) if is_mine else self
            case GatePassed(state, is_best):
                if not isinstance(work, PassGate) or work.state != state:
                    return self
                after = replace(self._back(heal=False), gate=StateGate(state, passed=True))
                return after._save_best(out) if is_best else after
            case ExportWritten(view, path, digest, metrics):
                if not isinstance(work, Export) or work.view != view:
                    return self
                return self._back(heal=False)._report_export(work, path, digest, metrics, out)
        assert_never(event)

    def _back(self, *, heal: bool, **changes: Any) -> Member:
        return replace(self, outstanding=self.outstanding.back(heal=heal), **changes)

    def _cancel(self, out: Out) -> Member:
        """Take back work that had no effect."""
        if self.outstanding.is_none:
            return self
        after = replace(self, outstanding=self.outstanding.cancel())
        if after.active and after.failure is None:
            return after._abort(None, "cancelled", out)
        return after

    def _break_ring(self, accused: MemberId | None, how: str, out: Out) -> Member:
        return self._abort(accused, how, out)

    def _count_chunk(self, event: ChunkComputed) -> Member:
        """Count a chunk into the accumulator: it is there, whether the view was sealed meanwhile or not (a promise is not changed)."""
        assert self.position is not None
        task = self.schedule.task(self.position, event.lane).id
        chunk = Contribution(event.lane, task, self.position.chunk, event.records, event.bad)
        added = self.accumulator.with_chunk(chunk, event.examples, event.loss)
        return self._back(heal=False, accumulator=added)

    def _healed(self, event: Healed, out: Out) -> Member:
        """Hold the view's base now; a healed member starts with an empty accumulator (M2)."""
        view, state, position = self.view, event.state, event.position
        if self.active and view is not None and state == view.base:
            position = view.position  # K of the view's first step may differ from the donor's
        gate = StateGate(state, passed=event.passed)
        member = replace(self, state=state, position=position, whole=True, accumulator=NOTHING, gate=gate)
        if member.active and view is not None:
            _serve(view, member.healees, out)  # the maker of the first weights has healees from the start
            progress = Progress(view.id, state, position, None, member._records(position))
            member._send(progress, out)
        return member

    def _lose_healee(self, view: ViewId, healee: MemberId) -> Member:
        if view != self.current or healee not in self.healees:
            return self
        return replace(self, healees=self.healees - {healee})

    # ------------------------------------------------------------------ the step

    def _proceed(self, out: Out) -> Member:
        """Do what can be done now: install, promise, commit, and give the next piece of work."""
        member = self
        if member.parked is not None and member.outstanding.is_none:
            member = member._install(member.parked, out)
        if (
            member.sealed > NO_VIEW
            and not member.active
            and member.report is None
            and member.outstanding.heal is None
            and member.parked is None
        ):
            member = member._promise(out)
        if member.active and member.result is not None:
            member = member._try_commit(out)
        is_free = member.outstanding.work is None and member.result is None
        if member.active and member.failure is None and is_free:
            member = member._next_work(out)
        return member

    def _next_work(self, out: Out) -> Member:
        view = self.view
        assert view is not None
        if view.final:
            if self._waits_to_export():
                return self._wait_at_gate(view, out)
            member = self._save_last(view, out)._end_training(out)
            return member._give(Export(view.id, view.base), out) if member._may_export(view) else member
        if self.contributed:
            return self
        if self.snapshots.due is not None:
            member = self._take_due(out)
            return member if member.snapshots.due is not None else member._next_work(out)
        if self._ended_data():
            is_held_up = self.saving is not None and self.snapshots.holds_up_end(self.saving)
            return self if is_held_up else self._seal(view.id, True, out)._proceed(out)
        if self._is_last(view):
            return self._leave_last(view, out)
        if self._waits_to_compute():
            return self._wait_at_gate(view, out)
        missing = self._owned(view) - self.accumulator.lanes
        if missing:
            return self._compute(min(missing), out) if self.whole else self
        return self._contribute(view, out) if self._may_contribute(view) else self

    def _waits_to_compute(self) -> bool:
        """G1: the gate of my state is closed."""
        return self.whole and self._is_closed()

    def _waits_to_export(self) -> bool:
        """G5: who writes the result passes first."""
        return self.whole and self._is_closed()

    def _wait_at_gate(self, view: View, out: Out) -> Member:
        """G3: say that I am here, and what I have, and do what is leased to me until the gate opens."""
        member = self
        if self.connected and self.gate.said != view.id:
            member = replace(self, gate=self.gate.told(view.id))
            member._say_at_gate(view, out)
        work = member.gate.work()
        return member if work is None else member._give(work, out)

    def _say_at_gate(self, view: View, out: Out) -> None:
        assert self.state is not None
        self._send(AtGate(view.id, self.state, self.metrics), out)
        for result in self.gate.results:
            self._send(result, out)
        if self.gate.evaluated is not None:
            self._send(self.gate.evaluated, out)

    def _give(self, work: Work, out: Out, **changes: Any) -> Member:
        out.append(work)
        return replace(self, outstanding=replace(self.outstanding, work=work), **changes)

    def _compute(self, lane: int, out: Out) -> Member:
        assert self.position is not None
        assert self.state is not None
        return self._give(Compute(self.state.step + 1, self.position, lane), out)

    def _may_contribute(self, view: View) -> bool:
        """M3: the accumulator is exactly my lanes of the step; or I own none of them, and give zeros before I am healed.

        Not where the view begins at a gate: zeros that wait for the others would be in the way of my own passing.
        """
        owned = self._owned(view)
        if self.whole:
            return self.accumulator.lanes == owned
        return not owned and not self.schedule.is_gate(view.position, view.base.step)

    def _contribute(self, view: View, out: Out) -> Member:
        lanes = self._at(view).lanes
        given = self.accumulator if self.whole else NOTHING
        trailer = given.trailer(lanes, flag=self._raises_flag(view))
        work = Contribute(view.id, self._step(view), lanes, given.chunks, trailer, blank=not self.whole)
        return self._give(work, out, contributed=True)

    def _raises_flag(self, view: View) -> bool:
        """Tell everybody that the master wants a change; a courtesy, nothing rests on it."""
        return self.pending == view.id

    def _may_commit_in(self, view: ViewId) -> bool:
        """M5: only in the current view, and not after a promise."""
        return self.failure is None and view == self.current and self.active

    def _serves(self) -> bool:
        """M5, M7: somebody still heals from me."""
        return bool(self.healees)

    def _try_commit(self, out: Out) -> Member:
        view, trailer = self.view, self.result
        assert view is not None
        assert trailer is not None
        if not self.whole or self._serves() or self._is_closed():
            return self
        assert self.state is not None
        assert self.position is not None
        if trailer.contributors != (1,) * self.position.lanes:
            return self._fail(_miscounted(view, self.state.step + 1, trailer), out)
        return self._commit(view, self.state, self.position, trailer, out)

    def _commit(self, view: View, state: StateId, position: Position, trailer: Trailer, out: Out) -> Member:
        after = self.schedule.advance(position, view.wave_lanes)
        new = StateId(state.step + 1, view.id)
        commit = Commit(view.id, new, after, trailer, self.schedule.epoch_ended(position, after))
        return self._give(
            commit,
            out,
            state=new,
            position=after,
            accumulator=NOTHING,
            gate=gate_of(new),
            contributed=False,
            result=None,
        )

    def _after_commit(self, commit: Commit, out: Out) -> Member:
        if not self._may_commit_in(commit.view):
            return self
        assert self.position is not None
        member = self
        trailer = commit.trailer
        if self.rank == 0:
            records = self._records(commit.position)
            self._send(Progress(commit.view, commit.state, commit.position, trailer.mean_loss, records), out)
        if self._wants_snapshot(commit):
            member = member._want_part(out)
        # At the end of the data `_next_work` seals.
        return member._seal(commit.view, True, out) if trailer.flag else member

    def _records(self, position: Position) -> int:
        ledger = self.schedule.ledger
        return position.epoch * ledger.num_records + self.schedule.records_done(position)

    # ------------------------------------------------------------------ the gate

    def _lease(self, lease: TaskLeased, out: Out) -> Member:
        """Take a task; one that is done is answered at once."""
        result = self.gate.has(lease.task) if lease.kind == TaskKind.EVALUATE else None
        if lease.state == self.state and result is not None:
            self._send(result, out)
            return self
        return replace(self, gate=self.gate.leased(lease))

    def _evaluated(self, event: ChunkEvaluated, out: Out) -> Member:
        if event.state != self.state:
            return self
        member = replace(self, gate=self.gate.with_chunk(event))
        result = None if event.body is None else member.gate.has(event.task)
        if result is not None:
            member._send(result, out)
        return member

    def _computed_metrics(self, event: MetricsComputed, out: Out) -> Member:
        if event.state != self.state:
            return self
        member = replace(self, gate=self.gate.with_metrics(event))
        if member.gate.evaluated is not None:
            member._send(member.gate.evaluated, out)
        return member

    # ------------------------------------------------------------------ snapshots, the last member, the end

    def _wants_snapshot(self, commit: Commit) -> bool:
        saving = self.saving
        if saving is None or self._ended_data():
            return False  # the last state is saved in the final view
        return commit.state.step % saving.every == 0 if saving.every else commit.epoch_ended

    def _save_best(self, out: Out) -> Member:
        """Save a state whose metrics are the best so far: all members pass its gate, and know it."""
        view = self.view
        is_wanted = self.active and self.saving is not None and view is not None and not view.final
        return self._want_part(out) if is_wanted else self

    def _save_last(self, view: View, out: Out) -> Member:
        """Save the state that the job ends with: the final view's base, which all of its members come to hold."""
        saving, state = self.saving, self.state
        if saving is None or not saving.lasting or not self.whole or self.snapshots.last is not None:
            return self
        # There is nothing new where no step was made.
        is_new = state is not None and state.step > 0 and state.view > NO_VIEW
        return self if not is_new or self.snapshots.is_full else self._take_part(out)

    def _cut(self) -> Cut:
        assert self.view is not None
        assert self.state is not None
        return Cut(self.view.id, self.state, self.gate.passed)

    def _want_part(self, out: Out) -> Member:
        return replace(self, snapshots=self.snapshots.wanted(self._cut()))._take_due(out)

    def _take_due(self, out: Out) -> Member:
        """Copy my part of the state that is due, or let it be if storage is too slow; nothing is computed before that."""
        saving, cut = self.saving, self.snapshots.due
        assert saving is not None
        if self.snapshots.waits(saving):
            return self
        if not self.snapshots.is_full:
            return self._take_part(out)
        assert cut is not None
        assert self.position is not None
        snapshots, said = self.snapshots.left_out(cut, self.position)
        self._send(said, out)
        return replace(self, snapshots=snapshots)

    def _take_part(self, out: Out) -> Member:
        """D6: copy my part of the state, as all of the view do; it counts when all have written theirs."""
        view, position, cut = self.view, self.position, self._cut()
        assert view is not None
        assert position is not None
        out.append(TakePart(cut, position, self.rank, len(view.members)))
        return replace(self, snapshots=self.snapshots.copied(cut))

    def _written(self, saved: Saved, out: Out) -> Member:
        counts = saved.cut.view == self.current
        if counts:
            self._send(saved, out)
        return replace(self, snapshots=self.snapshots.written(saved, counts=counts))

    def _is_last(self, view: View) -> bool:
        """D5: I drain and nobody is there to go on."""
        return self.draining and len(view.members) == 1 and self.whole

    def _leave_last(self, view: View, out: Out) -> Member:
        """D5: save my state before I ask to leave; in a view of one that takes nobody else."""
        if self.snapshots.kept == self.state:
            return self._seal(view.id, True, out)._proceed(out)
        is_begun = self.snapshots.last == self._cut()
        if self.saving is not None and not is_begun and not self.snapshots.is_full:
            return replace(self._take_part(out), ticks=0)
        if self.ticks < PATIENCE:
            return self
        # the disk may be full; somebody may have joined meanwhile who takes the state
        return self._seal(view.id, True, out)._proceed(out)

    def _end_training(self, out: Out) -> Member:
        """Say once that training is over; in a final view already, so that what callbacks do then has time before the job is finished."""
        if not self.whole or self.ended_training or self.failure is not None:
            return self
        out.append(EndTraining())
        return replace(self, ended_training=True)

    def _may_export(self, view: View) -> bool:
        return view.exporter == self.rank and self.whole and self.exported is None

    def _report_export(
        self, export: Export, path: str, digest: str, metrics: tuple[tuple[str, float], ...], out: Out
    ) -> Member:
        if not self.active or export.view != self.current:
            return self
        exported = Exported(export.view, export.state, path, digest, metrics)
        self._send(exported, out)
        return replace(self, exported=exported)

    def _fail(self, failure: ProgramFailed, out: Out) -> Member:
        """D10: seal everything, say why, and do nothing more."""
        if self.failure is not None:
            return self
        member = self._seal(self.current, not self.outstanding.contributes, out)
        failure = replace(failure, step=0 if member.state is None else member.state.step)
        member._send(failure, out)
        return replace(member, failure=failure, parked=None, report=None)


def _serve(view: View, healees: frozenset[MemberId], out: Out) -> None:
    """Serve the view's base, which is my state, to those that heal from me (M7)."""
    if healees:
        waiting = tuple(peer.id for peer in view.members if peer.id in healees)
        out.append(ServeState(view.id, view.base, view.position, waiting))


def _miscounted(view: View, step: int, trailer: Trailer) -> ProgramFailed:
    text = (
        f"step {step} of view {view.id} would count chunks {trailer.contributors} times instead of once each; "
        "this is an error of ElasticDL, please report it with the job's logs"
    )
    return ProgramFailed("program", "miscounted chunks", "", text)
