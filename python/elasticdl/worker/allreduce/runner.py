"""The loop of a synchronous worker: carries out what the member's state machine says.

It decides nothing: every event goes to `machine.py`, every instruction comes from there. The main thread does the work, one
piece at a time and in order; what can't wait (messages, closing a view's connections) is done at once on whatever thread brought the
event, so that a `stop` of the master frees a ring that blocks.

One file because all of it works on one view, queue and model, which one lock protects.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from elasticdl._core import Endpoint, Ring, StateServer, StateTransfer
from elasticdl.checkpoint.group import head_of, range_of
from elasticdl.checkpoint.stateimage import Best, RunningSums, State, decode, encode
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import MemberMessage, Note, Progress
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, MemberId, StateId, View, ViewId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadData, BadModel, Cancelled, RingBroken, TransferFailed
from elasticdl.worker.allreduce.divergence import diverged, is_one, spread
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.parts import PartWriter, read_saved
from elasticdl.worker.allreduce.upcoming import Need, upcoming
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.contract.allreduce import Adapter, ChunkResult, Compared, DeviceSums, GateLogs, StepLogs
from elasticdl.worker.contract.loop import LoopSource
from elasticdl.worker.evaluating import Evaluating
from elasticdl.worker.events import (
    Applied,
    ChunkComputed,
    CloseView,
    Commit,
    Compute,
    ComputeMetrics,
    Connected,
    Contribute,
    Disconnected,
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
    OpenView,
    PartWritten,
    PassGate,
    ProgramError,
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
from elasticdl.worker.finite import all_finite
from elasticdl.worker.notes import Sending, with_log_of_notes
from elasticdl.worker.raised import PROGRAM_ERRORS, program_error
from elasticdl.worker.result import written_result
from elasticdl.worker.settings import AHEAD, Beats, LoopSettings, value_of
from elasticdl.worker.steprecorder import StepRecorder

_log = logging.getLogger(__name__)
_LOOKED_UP = 4 * AHEAD
"""Chunks that are looked up and announced together; how many of them are read ahead is the source's affair."""
_PROGRESS_SECONDS = 0.05
"""Between two steps of which the master hears: a message takes a third of a millisecond of the worker that sends it."""
_TELLING, _AT_ONCE = (Connected, Disconnected, Tick), (CloseView, OpenView, Exit)
"""Events before which something may have to be said, and instructions that do not wait for the main thread: tuples, as unions are slow."""
_TURNS: dict[type, int] = {Send: 1, Exit: 2}
"""In which order instructions of one event are carried out, others first: so the stream finds all that is said, and sends one message."""
_PHASES: dict[type, str] = {
    Contribute: "ring",
    Commit: "apply",
    TakePart: "checkpoint",
    Evaluate: "evaluate",
    ComputeMetrics: "evaluate",
}
"""What a profile calls work that is one phase of a step."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is to be computed: `records` of it were read, `bad` of them left out."""

    compute: Compute
    records: int
    bad: int
    batch: Any


@dataclass(slots=True)
class Load:
    """Main thread: put this state in place (the transfer has ended, the machine has been told)."""

    state: State


@dataclass(slots=True)
class Item:
    """One piece of work, in the order of the machine's instructions."""

    number: int
    instruction: Instruction | Load


class AllReduceWorker:
    """One member: its machine, its model, its data plane."""

    def __init__(
        self,
        member: Member,
        adapter: Adapter,
        endpoint: Endpoint,
        chunks: LoopSource,
        evaluating: Evaluating | None,
        schedule: Schedule,
        audit: AuditLog | None,
        heart: Beats,
        send: Sending,
        settings: LoopSettings,
        leaving: Callable[[Exit], None],
        recorder: StepRecorder,
    ) -> None:
        """`leaving` is called at once when the member ends, while the main thread may still be at work.

        Without validation data nothing is `evaluating`.
        """
        self._machine = member
        self._member = member.id
        self._adapter = adapter
        self._endpoint = endpoint
        self._chunks = chunks
        self._evaluating = evaluating
        self._schedule = schedule
        self._audit = audit
        self._heart = heart
        self._send = with_log_of_notes(send)
        self._settings = settings
        self._leaving = leaving
        self._recorder = recorder

        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._numbers = 0
        self._cancelled = 0
        """Work with a number up to this one is given up (its view was sealed)."""

        self._view: View | None = None
        self._ring: Ring | None = None
        self._server: StateServer | None = None
        self._transfer: StateTransfer | None = None
        self._sealed_at: float | None = None
        self._told_at = -math.inf
        """When a committed step was told."""
        self._untold: Progress | None = None
        """A later one that has not been."""

        self._device = adapter if isinstance(adapter, DeviceSums) else None
        self._compared = adapter if isinstance(adapter, Compared) else None
        self._result: npt.NDArray[Any] = (
            np.zeros(adapter.size, adapter.dtype) if self._device is None else self._device.result
        )
        self._short = adapter.gradient_size if settings.short_gradients else 0
        """Elements that travel as bfloat16."""
        if self._short and np.dtype(adapter.dtype) != np.float32:
            raise BadModel(
                f"--gradient_dtype=bfloat16: is for models of float32, and this one has a variable of {np.dtype(adapter.dtype)}; "
                "leave it out, or make that variable float32"
            )
        self._zeros: npt.NDArray[Any] | None = None
        self._position: Position | None = None
        self._sums = RunningSums()
        self._passed = False
        """The gate of the state was passed."""
        self._at_placeholder = False
        self._needs: deque[Need] = deque()
        self._plan: Iterator[Need] = iter(())
        self._plan_of: tuple[int, int] | None = None
        self._best: Best | None = None
        self._parts = PartWriter(settings.snapshots, lambda saved: self.feed(PartWritten(saved)))

    # ------------------------------------------------------------------ events in

    def feed(self, event: Event) -> None:
        """Give an event to the machine and carry out what can't wait; callable from every thread."""
        with self._lock:
            if isinstance(event, _TELLING):
                self._tell_late(event)
            self._machine, instructions = self._machine.handle(event)
            for instruction in sorted(instructions, key=_turn):
                self._carry_out(instruction)
            self._beat()

    def at_placeholder(self, *, computes: bool) -> None:
        """Say that a program computes something before the work that it was given, or no longer.

        The machine only waits for others then, but the worker is at work, and who hangs in it hangs.
        """
        with self._lock:
            self._at_placeholder = computes
            self._beat()

    def _beat(self) -> None:
        view, step, progress = self._machine.beat
        self._heart.set(view, step, progress | self._at_placeholder)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Send):
            self._say(instruction.message)
            return
        if isinstance(instruction, _AT_ONCE):
            match instruction:
                case CloseView():
                    self._close_view(instruction)
                    return
                case OpenView(view):
                    self._open_view(view)
                case Exit():
                    self._leaving(instruction)
        self._numbers += 1
        self._queue.put(Item(self._numbers, instruction))

    def _say(self, message: MemberMessage) -> None:
        """Send a message; of steps that follow each other at once not each one, but the last one before anything else is said."""
        view = self._view
        # What a view begins with is no step, and is said at once.
        if isinstance(message, Progress) and view is not None and message.state.step > view.base.step:
            now = time.monotonic()
            if now < self._told_at + _PROGRESS_SECONDS:
                self._untold = message
                return
            self._told_at, self._untold = now, None
        self._tell_untold()
        self._send(message)

    def _tell_late(self, event: Connected | Disconnected | Tick) -> None:
        """Say how far the group is, if that has waited; on a new connection a member first says who it is, and that says it, too."""
        if isinstance(event, Tick):
            self._tell_untold()
        else:
            self._untold = None

    def _tell_untold(self) -> None:
        if self._untold is not None:
            self._send(self._untold)
            self._untold = None

    def _open_view(self, view: View) -> None:
        self._release_view(linger=False)
        self._cancelled = self._numbers
        rank = view.rank(self._member)
        assert rank is not None, "the machine installs only views that name this member (M1)"
        digest = view.digest
        self._view = view
        self._endpoint.enter(view.id, digest)
        if not view.final:
            peers = [(peer.id, peer.address) for peer in view.members]
            self._ring = Ring(self._endpoint, view.id, digest, rank, peers, self._settings.silence)

    def _close_view(self, close: CloseView) -> None:
        self._endpoint.seal(close.sealed)
        self._cancelled = self._numbers
        self._release_view(close.linger)
        if self._sealed_at is None:
            self._sealed_at = time.monotonic()
        self._note(EventKind.SEALED, close.sealed, 0, f"sealed view {close.sealed}")

    def _release_view(self, linger: bool) -> None:
        if self._ring is not None:
            if not linger:
                self._ring.cancel()
            self._ring.close(linger)
            self._ring = None
        if self._transfer is not None:
            self._transfer.cancel()
            self._transfer = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def _note(self, kind: EventKind, view: int, step: int, text: str, seconds: float | None = None) -> None:
        self._send(Note(kind, ViewId(view), step, text, seconds))

    # ------------------------------------------------------------------ the main thread

    def run(self) -> Exit:
        """Work until the machine says that this process ends; the caller's thread is the only one that touches the model."""
        while True:
            item = self.take()
            if isinstance(item.instruction, Exit):
                self.close()
                return item.instruction
            try:
                self.work(item)
            except PROGRAM_ERRORS as error:  # the machine decides what it means (D10)
                self.feed(program_error(error, self.describe_chunk()))

    def take(self) -> Item:
        """Wait for the next piece of work; who takes it does it, or lets `work` do it, before the next one."""
        return self._queue.get()

    def work(self, item: Item) -> None:
        """Do a piece of work, all but `Exit`. Raises what the user's program raises."""
        began = self._recorder.begin()
        self._work(item)
        self._recorder.end(_PHASES.get(type(item.instruction)) if began else None, began)
        if isinstance(item.instruction, Commit):
            self._recorder.end_step(item.instruction.state.step)

    def close(self) -> None:
        """End the threads that work for this one: a process that trains by itself may live on."""
        self._parts.close()
        self._chunks.close()
        if self._evaluating is not None:
            self._evaluating.close()

    @property
    def epoch(self) -> int:
        """Return the epoch of the state that is in the model."""
        return 0 if self._position is None else self._position.epoch

    def describe_chunk(self) -> str:
        """Say which chunk is under way, for messages; empty if none has been."""
        position = self._position
        return (
            ""
            if position is None
            else f"epoch {position.epoch}, task place {position.first_task}, chunk {position.chunk}"
        )

    def stale(self, item: Item) -> bool:
        """Tell whether the item's view was sealed meanwhile; the machine then hears of its end."""
        with self._lock:
            return item.number <= self._cancelled

    def _work(self, item: Item) -> None:
        instruction = item.instruction
        match instruction:
            case Contribute():  # first what comes in every step
                self._contribute(instruction, item)
            case Commit():
                reason = self.apply(instruction)
                self.applied(instruction, reason)
            case PassGate():
                self._pass_gate(instruction)
            case OpenView():
                self._begin_view(instruction)
            case Load(state):
                self._load(state)
            case TakePart():
                self._take_part(instruction)
            case EndTraining():
                self._end_training()
            case ServeState():
                if not self.stale(item):
                    self._serve(instruction)
            case Heal() | Compute() | Evaluate() | ComputeMetrics() | Export():
                if self.stale(item):
                    self.feed(WorkCancelled())
                elif isinstance(instruction, Heal):
                    self._heal(instruction)
                elif isinstance(instruction, Compute):
                    self._compute(instruction)
                elif isinstance(instruction, Export):
                    self._export(instruction)
                else:
                    self._evaluate(instruction)
            case Send() | CloseView() | Exit():
                raise AssertionError(f"{instruction} is carried out elsewhere")
            case _:
                assert_never(instruction)

    def _begin_view(self, opening: OpenView) -> None:
        if not opening.keep:
            self._adapter.zero()
        # What was looked up for the old view may be other chunks than the same steps and lanes of this one have.
        self._plan_of = None
        self._needs.clear()
        self._adapter.writes = opening.view.rank(self._member) == opening.view.writer
        if self._audit is not None:
            self._audit.base(opening.view)
        self._compare(opening.view)

    def _compare(self, view: View) -> None:
        """In a final view, say which bits this member holds, so that people can compare them."""
        rank = view.rank(self._member)
        if view.final and rank is not None and view.sources[rank] is None:
            self._note(EventKind.DIGEST, view.id, view.base.step, self._adapter.digest())

    # ------------------------------------------------------------------ chunks

    def _need(self, compute: Compute) -> Need:
        """Return the chunk of a lane, and keep the prefetching thread a few chunks ahead."""
        view = self._view
        assert view is not None
        rank = view.rank(self._member)
        assert rank is not None
        if self._plan_of != (view.id, compute.step) and not any(n.step == compute.step for n in self._needs):
            self._needs.clear()
            self._plan = upcoming(self._schedule, view, rank, compute.position, compute.step)
        self._plan_of = (view.id, compute.step)
        while self._needs and self._needs[0].step < compute.step:
            self._needs.popleft()
        if len(self._needs) < AHEAD:
            self._needs.extend(islice(self._plan, _LOOKED_UP - len(self._needs)))
            self._chunks.want([need.key for need in self._needs if need.key is not None])
        for need in self._needs:
            if need.step == compute.step and need.lane == compute.lane:
                return need
        task = self._schedule.task(compute.position, compute.lane)
        chunk = compute.position.chunk
        inside = chunk < self._schedule.ledger.num_chunks(task)
        return Need(compute.step, compute.lane, task, chunk, (task.epoch, task.id, chunk) if inside else None)

    def _compute(self, compute: Compute) -> None:
        chunk = self.read_chunk(compute)
        if chunk is None:
            return
        began = self._recorder.begin()
        result = self._adapter.compute(chunk.batch, compute.step, compute.lane)
        self._recorder.end("compute", began)
        self.computed(chunk, result)

    def read_chunk(self, compute: Compute) -> Chunk | None:
        """Return the chunk to be computed; None, with the machine told, if there is nothing in it."""
        self._position = compute.position
        need = self._need(compute)
        if need.key is None:
            self.feed(ChunkComputed(compute.lane, 0, 0.0, 0.0))
            return None
        began = self._recorder.begin()
        records, bad, batch = self._chunks.get(need.key)
        self._recorder.end("read", began)
        if batch is None:  # every record of the chunk was bad, and may be
            self.feed(ChunkComputed(compute.lane, records, 0.0, 0.0, bad))
            return None
        return Chunk(compute, records, bad, batch)

    def computed(self, chunk: Chunk, result: ChunkResult) -> None:
        """Say that a chunk is in the accumulator."""
        examples, loss = result.examples, result.loss
        self.feed(ChunkComputed(chunk.compute.lane, chunk.records, examples, loss, chunk.bad))

    # ------------------------------------------------------------------ the ring and the commit

    def _contribute(self, work: Contribute, item: Item) -> None:
        with self._lock:
            ring, view, is_stale = self._ring, self._view, self.stale(item)
        if ring is None or view is None or is_stale:
            self.feed(WorkCancelled())
            return
        if self._audit is not None and work.lines:
            assert self._position is not None
            self._audit.contributed(work.view, work.step, self._position.epoch, work.lines)
        sums = work.trailer
        trailer = [
            float(sums.records),
            sums.examples,
            sums.loss,
            sums.loss_examples,
            float(sums.flag),
            *map(float, sums.contributors),
        ]
        compared = self._compared if len(view.members) > 1 else None
        if compared is not None:
            trailer += spread(0 if work.blank else 1, 0 if work.blank else compared.fingerprint(work.step))
        alone = self._device is not None and len(view.members) == 1 and self._has_given(work)
        # the sum of a member that is alone stays where it is; its trailer goes the way of all
        result = self._result[:0].data if alone else self._result.data
        try:
            if alone:
                total = ring.reduce(work.step, result, result, trailer)
            else:
                total = ring.reduce(work.step, self._given(work), result, trailer, self._short)
        except RingBroken as broken:
            _log.info("step %d: %s", work.step, broken)
            accused = view.members[broken.rank].id if broken.rank is not None else None
            self.feed(RingFailed(work.view, work.step, accused, broken.how))
            return
        except Cancelled:
            self.feed(WorkCancelled())
            return
        end = 5 + work.lanes
        if compared is not None and not is_one(total[end:]):
            self.feed(diverged(work.step))
            return
        contributors = tuple(int(count) for count in total[5:end])
        records, examples, loss, loss_examples, flag = total[:5]
        reduced = Trailer(int(records), examples, loss, loss_examples, int(flag), contributors)
        finite = all_finite(self._result) if self._device is None else self._device.take(alone=alone)
        if not (math.isfinite(reduced.loss) and finite):
            if self._settings.on_nan == "fail":
                self.feed(_not_finite(work.step, reduced))
                return
            # every member sees the same bits, so every member skips the same step; one says so
            if view.rank(self._member) == 0:
                text = f"step {work.step} is not finite and changes nothing (on_nan=skip_step)"
                self._note(EventKind.IDLE_STEP, work.view, work.step, text)
            reduced = replace(reduced, examples=0.0, loss=0.0, loss_examples=0.0)
        self.feed(RingCompleted(work.view, work.step, reduced))

    def _has_given(self, work: Contribute) -> bool:
        return not work.blank and bool(work.lines)

    def _given(self, work: Contribute) -> Any:
        if self._has_given(work):
            return self._adapter.accumulator()
        if self._zeros is None:
            self._zeros = np.zeros(self._adapter.size, self._adapter.dtype)
        return self._zeros

    def apply(self, commit: Commit) -> str | None:
        """Commit a step; return a reason if the user's program wants the job to stop. `applied` follows."""
        if self._audit is not None:
            trailer = commit.trailer
            applied = trailer.examples > 0
            self._audit.committed(commit.view, commit.state.step, trailer.records, applied=applied)
        examples = commit.trailer.examples
        if self._device is None:
            self._adapter.apply(self._result, examples)
        else:
            self._device.commit(examples)
        self._sums = RunningSums(
            self._sums.loss + commit.trailer.loss, self._sums.examples + commit.trailer.loss_examples
        )
        at_gate = self._schedule.is_gate(commit.position, commit.state.step)
        # At a gate the end of an epoch waits for the metrics that belong to it.
        ends = commit.epoch_ended and not at_gate
        reason = self._adapter.logs(self._logs(commit, ends, at_gate))
        if ends:
            self._sums = RunningSums()
        self._position = commit.position
        self._passed = False
        if self._sealed_at is not None:
            seconds = time.monotonic() - self._sealed_at
            self._sealed_at = None
            self._note(
                EventKind.COMMITTED_FIRST,
                commit.view,
                commit.state.step,
                f"step {commit.state.step} is committed",
                seconds,
            )
        return reason

    def applied(self, commit: Commit, reason: str | None) -> None:
        """Say that a step is committed: from now on others may get this state."""
        self.feed(Applied(commit.state, reason or ""))

    def _logs(self, commit: Commit, ends: bool, at_gate: bool) -> StepLogs:
        trailer, sums = commit.trailer, self._sums
        epoch = commit.position.epoch - 1 if commit.epoch_ended else commit.position.epoch
        return StepLogs(
            step=commit.state.step,
            epoch=epoch,
            loss=trailer.mean_loss,
            epoch_ended=ends,
            epoch_loss=sums.loss / sums.examples if sums.examples else None,
            at_gate=at_gate,
        )

    # ------------------------------------------------------------------ gates

    def _evaluate(self, work: Evaluate | ComputeMetrics) -> None:
        evaluating = self._evaluating
        assert evaluating is not None, "nothing is evaluated without validation data"
        self.feed(evaluating.evaluate(work) if isinstance(work, Evaluate) else evaluating.compute(work))

    def _pass_gate(self, work: PassGate) -> None:
        """Give callbacks the metrics; where an epoch has ended, that is over only now."""
        position, sums = self._position, self._sums
        assert position is not None
        ended = self._schedule.begins_epoch(position)
        logs = GateLogs(
            step=work.state.step,
            epoch=position.epoch - 1 if ended else position.epoch,
            values=work.values,
            epoch_ended=ended,
            epoch_loss=sums.loss / sums.examples if sums.examples else None,
        )
        reason = self._adapter.gate(logs)
        if ended:
            self._sums = RunningSums()
        self._passed = True
        better = self._better(work)
        self._best = better or self._best
        self.feed(GatePassed(work.state, better is not None))
        if reason is not None:
            self.feed(StopRequested(reason))

    def _better(self, work: PassGate) -> Best | None:
        """Return the value of the metric by which checkpoints are chosen, None if it is not better than all before, or there is none."""
        choice = self._settings.checkpoint_best
        if choice is None or work.values is None:
            return None
        value = value_of(choice, work.values)
        is_better = math.isfinite(value) and (self._best is None or choice.is_better(value, self._best.value))
        return Best(value, work.state.step) if is_better else None

    # ------------------------------------------------------------------ states

    def _encode(self, state: StateId, position: Position) -> bytearray:
        image = self._adapter.image()
        return encode(State(state, position, self._sums, image, self._passed, self._best))

    def _take_part(self, take: TakePart) -> None:
        meta, size = self._adapter.describe_image()
        first, end = range_of(take.rank, take.members, size)
        head = head_of(self._sums, self._passed, self._best, meta)
        self._parts.write(take, first, size, self._adapter.image_part(first, end), head)

    def _load(self, state: State) -> None:
        self._adapter.load(state.image)
        self._adapter.zero()
        self._sums = state.sums
        self._position = state.position
        self._passed = state.passed
        self._best = state.best

    def _heal(self, heal: Heal) -> None:
        """Get a state; a transfer runs on a thread of its own, so that this one can give zeros to the first step meanwhile."""
        if heal.source == INITIAL:
            self._position = heal.position
            self.feed(Healed(heal.view, heal.state, heal.position))
        elif heal.source == SNAPSHOT:
            assert heal.path is not None
            state = read_saved(Path(heal.path), heal.state, heal.position)
            try:
                self._load(state)
            except TransferFailed as failure:
                raise BadData(
                    f"{Path(heal.path).parent}: the checkpoint is of another model: {failure}"
                ) from None
            self.feed(Healed(heal.view, heal.state, heal.position, state.passed))
        else:
            with self._lock:
                view = self._view
                if view is None or view.id != heal.view:
                    self.feed(WorkCancelled())
                    return
                donor = next(peer for peer in view.members if peer.id == heal.source)
                wanted = (heal.state.step, heal.state.view)
                transfer = StateTransfer(
                    self._endpoint,
                    view.id,
                    view.digest,
                    wanted,
                    (donor.id, donor.address),
                    self._settings.silence,
                )
                self._transfer = transfer
            threading.Thread(
                target=self._receive, args=(heal, transfer, donor.name), name="heal", daemon=True
            ).start()

    def _receive(self, heal: Heal, transfer: StateTransfer, donor: str) -> None:
        began = time.monotonic()
        self._note(
            EventKind.HEALING, heal.view, heal.state.step, f"receiving step {heal.state.step} from {donor}"
        )
        try:
            state = decode(transfer.run())
            transfer.acknowledge()
        except Cancelled:
            self.feed(WorkCancelled())
            return
        except TransferFailed as failure:
            self.feed(HealFailed(heal.view, str(failure)))
            return
        with self._lock:
            # the model is loaded before any later work of the main thread: the queue keeps the order
            self._numbers += 1
            self._queue.put(Item(self._numbers, Load(state)))
            seconds = time.monotonic() - began
            text = f"received step {heal.state.step} from {donor} in {seconds:.2f} s"
            self._note(EventKind.HEALED, heal.view, heal.state.step, text, seconds)
            self.feed(Healed(heal.view, heal.state, state.position, state.passed))

    def _serve(self, serve: ServeState) -> None:
        image = self._encode(serve.state, serve.position)
        with self._lock:
            view = self._view
            if view is None or view.id != serve.view:
                return
            state = (serve.state.step, serve.state.view)
            server = StateServer(self._endpoint, view.id, view.digest, state, image)
            self._server = server
        self._note(
            EventKind.SERVING,
            serve.view,
            serve.state.step,
            f"serving step {serve.state.step} to {len(serve.healees)} members",
        )
        arguments = (serve, server)
        threading.Thread(target=self._watch_healees, args=arguments, name="serve", daemon=True).start()

    def _watch_healees(self, serve: ServeState, server: StateServer) -> None:
        waiting = {str(member) for member in serve.healees}
        while waiting:
            with self._lock:
                if self._server is not server:
                    return
            for member, acknowledged in server.wait(0.5):
                waiting.discard(member)
                self.feed(HealeeLeft(serve.view, MemberId(member), acknowledged))
        with self._lock:
            if self._server is server:
                self._server = None
        server.close()

    def _end_training(self) -> None:
        if self._view is None or not self._view.final:
            # This member is not in the last view; the exporter there writes what callbacks write to files.
            self._adapter.writes = False
        with self._lock:
            state = self._machine.state
        assert state is not None, "who has no state does not end training"
        self._adapter.end_training(state.step)

    def _export(self, export: Export) -> None:
        with written_result(self._settings.output, export.state.step, export.state.view) as path:
            digest = self._adapter.export(path, self._settings.output_format)
        self.feed(ExportWritten(export.view, path, digest, ()))


def _turn(instruction: Instruction) -> int:
    return _TURNS.get(type(instruction), 0)


def _not_finite(step: int, trailer: Trailer) -> ProgramError:
    what = (
        f"the loss of step {step} is {trailer.loss}"
        if not math.isfinite(trailer.loss)
        else f"the gradient of step {step} is not finite"
    )
    text = f"{what}. Lower the learning rate, clip gradients, or set --on_nan=skip_step."
    return ProgramError("nan", f"not finite at step {step}", "", text)
