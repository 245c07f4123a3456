"""Programs with loops of their own in this process: real sessions, machines, rings and data plane; the master is played by the test.

A record is a number and its gradient is that number, so sums can be made in one's head: with a rate of 1 the weight is what all records
were, times -1. Each program runs on a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from elasticdl._core import Endpoint
from elasticdl.control.protocol.messages import (
    Data,
    FoundShards,
    MasterMessage,
    MemberMessage,
    NextView,
    Welcome,
)
from elasticdl.control.protocol.view import MemberId, Peer
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.spec.jobspec import OnNaN
from elasticdl.worker.events import Connected, Exit, News, ProgramError, Received
from elasticdl.worker.keptnotes import KeptNotes
from elasticdl.worker.loop.control import Left
from elasticdl.worker.loop.plain import PlainJob
from elasticdl.worker.loop.session import JobSession
from elasticdl.worker.steprecorder import StepRecorder
from tests.core.members import member, open_endpoint
from tests.worker.synchronous import SECONDS

Message = TypeVar("Message", bound=MemberMessage)


class PlayedProcess:
    """What a `MemberProcess` is to a session."""

    def __init__(self, folder: Path, number: int) -> None:
        self.id = MemberId(member(number))
        self.name = f"worker-{number}-1"
        self.place = SimpleNamespace(snapshots=lambda spec: None)
        self.spec = SimpleNamespace(
            checkpoint_steps=0, checkpoint_dir="", output="", audit=str(folder), silence_seconds=SECONDS, on_nan=OnNaN.FAIL,
            short_gradients=False, stall_seconds=60.0,
        )  # fmt: skip
        self.data: Future[Data] = Future()
        self.beats: list[tuple[int, ...]] = []
        self.heart = SimpleNamespace(set=lambda *beat: self.beats.append(beat), alive=lambda: None)
        self.recorder = StepRecorder(self.send)
        self.kept = KeptNotes(self.send)
        self.said: list[MemberMessage] = []
        self.left: list[Exit] = []
        self.reported: list[ProgramError] = []
        self.leaving: list[Exit] = []
        self.agreed: LoopPlan | None = None
        self._endpoint: Endpoint = open_endpoint(folder, number, "unix")
        self.peer = Peer(self.id, self.name, self._endpoint.address)
        self._spoken = threading.Condition()
        self._heard = 0
        self._feed: Future[Callable[[News], None]] = Future()

    def send(self, message: MemberMessage) -> bool:
        with self._spoken:
            self.said.append(message)
            self._spoken.notify_all()
        return True

    def note(self, text: str) -> bool:
        return True

    def found(self, found: FoundShards) -> None:
        self.send(found)
        self.data.set_result(Data(found.shards, (), self.agreed or found.plan))

    def endpoint(self) -> Endpoint:
        return self._endpoint

    def attach(self, feed: Callable[[News], None]) -> None:
        feed(Connected())
        feed(Received(Welcome(1)))
        self._feed.set_result(feed)

    def leave(self, ended: Exit) -> int:
        self.left.append(ended)
        return ended.code

    def report(self, error: ProgramError) -> Exit:
        self.reported.append(error)
        return Exit(1, error.traceback)

    # ------------------------------------------------------------------ the test

    def tell(self, *messages: MasterMessage) -> None:
        feed = self._feed.result(SECONDS)
        for message in messages:
            feed(Received(message))

    def hear(self, kind: type[Message], where: Callable[[Message], bool] = lambda _: True) -> Message:
        """Wait for the next message of a kind; what was said before it counts as heard."""

        def place() -> int | None:
            for one in range(self._heard, len(self.said)):
                said = self.said[one]
                if isinstance(said, kind) and where(said):
                    return one
            return None

        with self._spoken:
            assert self._spoken.wait_for(lambda: place() is not None, SECONDS), self.said
            found = place()
            assert found is not None
            self._heard = found + 1
            message = self.said[found]
        assert isinstance(message, kind)
        return message

    def close(self) -> None:
        self._endpoint.close()


class Program:
    """The loop of the documentation, which notes what it computes: (step, batch, committed, weight after it)."""

    def __init__(
        self, folder: Path, number: int = 0, losses: Mapping[int, float] | None = None, **settings: Any
    ) -> None:
        """`losses`: what it says of each step, by the steps' numbers; None: 1."""
        self.process = PlayedProcess(folder, number)
        self._losses = losses
        anything: Any = self.process
        self.session = JobSession(anything, self.process.leaving.append)
        self.job = PlainJob(self.session)
        self.weight = np.zeros(1)
        self.passes: list[tuple[int, list[int], bool, float]] = []
        self.ended = ""
        self.moments: dict[str, Callable[[], None]] = {}
        self._settings = {
            "count": 8,
            "batch_size": 2,
            "num_epochs": 1,
            "shuffle": False,
            "parameters": self.weight,
            **settings,
        }
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Program:
        self._thread.start()
        return self

    def join(self) -> str:
        """Wait for the program's end; return how it ended."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        return self.ended

    def _moment(self, name: str) -> None:
        self.moments.pop(name, lambda: None)()

    def _run(self) -> None:
        try:
            job = self.job
            job.state["weight"] = self.weight
            job.state["after"] = 0
            for chunk in job.chunks(**self._settings):
                step = job.steps
                self._moment(f"computes {step + 1}")
                loss = 1.0 if self._losses is None else self._losses.get(step + 1)
                mean = job.step(np.array([float(chunk.mean())]), loss=loss)
                if mean is not None:
                    self.weight -= mean
                self.passes.append((step + 1, chunk.tolist(), job.committed, float(self.weight[0])))
                if job.committed:
                    self._moment(f"after {job.steps}")
                    job.state["after"] = job.steps
            self._moment("after the loop")
            self.session.finish()
            self.ended = "finished"
        except Left as left:
            self.ended = f"left with {left.code}"
        except Exception as error:
            self.ended = f"{type(error).__name__}: {error}"


def first_reports(*programs: Program) -> list[Any]:
    """Wait for the promises of members; return them."""
    return [one.process.hear(NextView).report for one in programs]
