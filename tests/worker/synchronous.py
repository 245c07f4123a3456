"""A synchronous worker in this process: the real loop, machine, chunks, data plane and framework; master and records are played.

A record is a number, and its loss and its gradient are that number, so sums can be made in one's head. There are two tasks of two chunks of
two records. With two lanes a step takes the records 0, 1, 4 and 5, the next one 2, 3, 6 and 7; then comes the next epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elasticdl._core import Endpoint
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.control.protocol.messages import (
    MasterMessage,
    MemberMessage,
    NewView,
    NextView,
    ProgramFailed,
    Saved,
    Welcome,
)
from elasticdl.control.protocol.view import INITIAL, MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard, Task
from elasticdl.data.prefetch import ChunkSource
from elasticdl.reference import SGD, Callback, Computed, Model
from elasticdl.reference.adapter import ReferenceAdapter
from elasticdl.spec.edge import build, from_arguments
from elasticdl.worker.allreduce.machine import Member
from elasticdl.worker.allreduce.runner import AllReduceWorker
from elasticdl.worker.allreduce.snapshots import Saving
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.contract.allreduce import ChunkResult, StepLogs
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.events import Connected, Event, Exit, Instruction, Received
from elasticdl.worker.settings import AHEAD, LoopSettings
from elasticdl.worker.steprecorder import StepRecorder
from tests.core.members import member, open_endpoint

SECONDS = 20.0
"""What nothing here takes."""
START_STATE = StateId(0, 1)
SPEC = build(from_arguments({"model_zoo": "x", "model_def": "x.x", "training_data": "x", "seed": 1}))

Message = TypeVar("Message", bound=MemberMessage)


def schedule(records: int = 8, epochs: int = 2) -> Schedule:
    shards = (Shard("s", 0, records),)
    return Schedule(Ledger(shards, 4, 2, 0, shuffle=False), num_epochs=epochs, max_step=0)


SCHEDULE = schedule()
START = SCHEDULE.start(2)


class Sums(Model):
    """Nothing to learn: one weight, which each record moves by its own number."""

    def parameters(self, random: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
        return {"weight": np.zeros(1)}

    def compute(
        self, values: Any, rows: Any, features: Any, labels: Any, random: np.random.Generator
    ) -> Computed:
        return Computed(float(labels.sum()), {"weight": np.array([features.sum()])})


def feed(records: Sequence[float], mode: Any, metadata: Any) -> tuple[Any, Any]:
    return np.array(records), np.array(records)


class Numbers:
    """A reader of numbers: record n is n, if `values` does not say otherwise."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.corrupt: set[int] = set()

    def read(self, task: Task, wanted: Sequence[int]) -> list[float]:
        return [self.values.get(one, float(one)) for one in wanted if one not in self.corrupt]


class Watched(ReferenceAdapter):
    """A model that writes down what is done with it, and lets a test act at that moment."""

    def __init__(self, user: UserModel) -> None:
        super().__init__(user, SPEC, None)
        self.did: list[Any] = []
        self.moments: dict[str, Callable[[], None]] = {}
        self.prepare([0.0])
        self.did.clear()

    def _note(self, what: str, *details: Any) -> None:
        self.did.append((what, *details))
        self.moments.get(what, lambda: None)()

    @property
    def weight(self) -> float:
        """Return the weight, which is the first of the state's numbers."""
        return float(self.image().body[:8].view(np.float64)[0])

    def done(self, what: str) -> list[Any]:
        """Return the details of all that was done of a kind."""
        return [one[1:] for one in self.did if one[0] == what]

    def compute(self, batch: Any, step: int, lane: int) -> ChunkResult:
        self._note("compute", step, lane, batch.labels.tolist())
        return super().compute(batch, step, lane)

    def accumulator(self) -> memoryview:
        self._note("give")
        return super().accumulator()

    def apply(self, result: npt.NDArray[Any], examples: float) -> None:
        self._note("apply", examples)
        super().apply(result, examples)

    def logs(self, logs: StepLogs) -> str | None:
        self._note("logs", logs)
        return super().logs(logs)

    def load(self, image: StateImage) -> None:
        self._note("load")
        super().load(image)

    def end_training(self, step: int) -> None:
        self._note("end", step, self.writes)
        super().end_training(step)

    def export(self, path: str, kind: str, tables: Any = None) -> str:
        self._note("export", path)
        return super().export(path, kind, tables)


class OnDevice(Watched):
    """The same model, whose sums are taken to memory of its own."""

    def __init__(self, user: UserModel) -> None:
        super().__init__(user)
        self.result: npt.NDArray[Any] = np.zeros(self.size, self.dtype)
        self._taken = self.result

    def take(self, *, alone: bool) -> bool:
        self._note("take", alone)
        self._taken = np.array(ReferenceAdapter.accumulator(self) if alone else self.result)
        return bool(np.isfinite(self._taken).all())

    def commit(self, examples: float) -> None:
        self.apply(self._taken, examples)


class Chunks(ChunkSource):
    """The chunks, with what was expected."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.wanted: list[list[Any]] = []

    def want(self, keys: Sequence[Any]) -> None:
        self.wanted.append(list(keys))
        super().want(keys)


class Witnessed:
    """The machine, with the events that it was given."""

    def __init__(self, machine: Member, events: list[Event]) -> None:
        self._machine, self._events = machine, events
        self.id, self.beat, self.state = machine.id, machine.beat, machine.state

    def handle(self, event: Event) -> tuple[Witnessed, tuple[Instruction, ...]]:
        self._events.append(event)
        machine, instructions = self._machine.handle(event)
        return Witnessed(machine, self._events), instructions


class Worker:
    """One worker; its loop runs on a thread of its own from `start` on. The test is its master."""

    def __init__(
        self,
        folder: Path,
        number: int = 0,
        *,
        data: Schedule = SCHEDULE,
        callbacks: Sequence[Callback] = (),
        convert: Callable[..., Any] = feed,
        silence: float = SECONDS,
        on_nan: str = "fail",
        short_gradients: bool = False,
        output: Path | None = None,
        snapshots: Path | None = None,
        checkpoint_steps: int = 0,
        kind: type[Watched] = Watched,
    ) -> None:
        self.id = MemberId(member(number))
        name = f"worker-{number}-0"
        self.endpoint: Endpoint = open_endpoint(folder, number, "unix")
        self.peer = Peer(self.id, name, self.endpoint.address)
        self.reader = Numbers()
        self.adapter = kind(
            UserModel(Path("model.py"), Sums, {}, None, lambda: SGD(1.0), convert, lambda: callbacks, None)
        )
        anything: Any = self
        reader: Any = self.reader
        self.chunks = Chunks(reader, data.ledger, self.adapter.convert, AHEAD)
        self.said: list[MemberMessage] = []
        self.events: list[Event] = []
        self.left: list[Exit] = []
        self.beats: list[tuple[int, ...]] = []
        self._audit = folder / f"{name}-{self.id}.audit"
        self._heard = 0
        self._spoken = threading.Condition()
        self._exits: list[Exit] = []
        self._thread = threading.Thread(target=lambda: self._exits.append(self.worker.run()), daemon=True)
        machine: Any = Witnessed(
            Member(
                self.id,
                name,
                self.peer.address,
                data,
                None if snapshots is None else Saving(checkpoint_steps),
            ),
            self.events,
        )
        self.log = AuditLog(folder, name, self.id, lambda text: None)
        self.recorder = StepRecorder(self._send)
        self.worker = AllReduceWorker(
            machine, self.adapter, self.endpoint, self.chunks, None, data, self.log, anything, self._send,
            LoopSettings(silence, on_nan, output, "npz", snapshots, short_gradients=short_gradients), self.left.append, self.recorder,
        )  # fmt: skip
        self.worker.feed(Connected())
        self.tell(Welcome(1))

    def set(self, *beat: int) -> None:
        """Be the heart, too."""
        self.beats.append(beat)

    def _send(self, message: MemberMessage) -> bool:
        with self._spoken:
            self.said.append(message)
            self._spoken.notify_all()
        return True

    # ------------------------------------------------------------------ the master

    def tell(self, *messages: MasterMessage) -> None:
        for message in messages:
            self.worker.feed(Received(message))

    def start(self, *messages: MasterMessage) -> None:
        self.tell(*messages)
        self._thread.start()

    def hear(self, kind: type[Message]) -> Message:
        """Wait for the next message of a kind; what was said before it counts as heard."""

        def place() -> int | None:
            places = range(self._heard, len(self.said))
            return next((one for one in places if isinstance(self.said[one], kind)), None)

        def known() -> bool:
            return place() is not None or bool(self.of(ProgramFailed))

        with self._spoken:
            assert self._spoken.wait_for(known, SECONDS), self.said
            found = place()
            assert found is not None, self.of(ProgramFailed)
            self._heard = found + 1
            message = self.said[found]
        assert isinstance(message, kind)
        return message

    def wait_for_snapshot(self, step: int) -> None:
        """Let the loop wait, two steps later, until the snapshot of a step is known: it is written on a thread of its own."""

        def wait() -> None:
            if self.adapter.did[-1][1] == step + 2:
                with self._spoken:
                    assert self._spoken.wait_for(known, SECONDS)

        def known() -> bool:
            return any(one.cut.state.step == step for one in self.of(Saved))

        self.adapter.moments["compute"] = wait

    def end(self, *messages: MasterMessage) -> Exit:
        """Tell the last of it, and wait until the loop has ended."""
        self.tell(*messages)
        self._thread.join(SECONDS)
        assert self._exits, "the loop has not ended"
        return self._exits[0]

    def last_view(self, *others: Worker, exporter: int = 0) -> View:
        """Wait for the promises of a view's members; return a last view that answers them."""
        reports = [one.hear(NextView).report for one in (self, *others)]
        report = reports[0]
        assert all((one.state, one.position) == (report.state, report.position) for one in reports)
        assert report.state is not None
        assert report.position is not None
        peers = tuple(one.peer for one in (self, *others))
        final = view(report.sealed + 1, *peers, base=report.state, at=report.position, exporter=exporter)
        for one in (self, *others):
            one.tell(NewView(final))
        return final

    # ------------------------------------------------------------------ what came of it

    def of(self, kind: type[Message]) -> list[Message]:
        return [one for one in list(self.said) if isinstance(one, kind)]

    def seen(self, kind: type[Any]) -> list[Any]:
        return [one for one in list(self.events) if isinstance(one, kind)]

    def audit(self) -> list[str]:
        """Return the facts in the audit's file, without its first line and checksums."""
        return [line.rpartition(" ")[0] for line in self._audit.read_text().splitlines()[1:]]

    def close(self) -> None:
        self.chunks.close()
        self.endpoint.close()
        self.log.close()


Made = Callable[..., Worker]
"""Makes a worker, of the settings of `Worker`."""


def view(
    number: int,
    *members: Peer,
    base: StateId = START_STATE,
    at: Position = START,
    first: tuple[int, ...] | None = None,
    lanes: int = 2,
    sources: tuple[str | None, ...] | None = None,
    exporter: int | None = None,
    snapshot: str | None = None,
) -> View:
    """Return a view of members that hold its base; the first view's make it."""
    count = len(members)
    if sources is None:
        sources = ((INITIAL if number == 1 else None),) * count
    later = tuple(lane % count for lane in range(max(lanes, at.lanes)))
    if exporter is not None:
        first = ()
    return View(
        ViewId(number), members, base, at, later[: at.lanes] if first is None else first, later, lanes, sources,
        exporter is not None, exporter, snapshot,
    )  # fmt: skip
