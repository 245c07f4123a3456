"""What a worker of a job with parameter servers says to its master."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from elasticdl.control.protocol.messages import MemberMessage
from elasticdl.control.protocol.psmessages import (
    Enroll,
    Holding,
    Leased,
    Placed,
    Settled,
    TaskDone,
    Watermark,
)
from elasticdl.control.protocol.view import MemberId
from elasticdl.worker.events import Connected, Received
from elasticdl.worker.ps.runner import PsWorker
from elasticdl.worker.settings import LoopSettings
from tests.simulation.servers.world import Plan, World

PROGRESS_SECONDS = 0.2


def told_by_workers(seed: int) -> list[tuple[float, str, Settled | TaskDone]]:
    """Return when a worker told what of its tasks, in a job that nothing befalls."""
    told: list[tuple[float, str, Settled | TaskDone]] = []

    class Heard(PsWorker):
        def __init__(self, member: MemberId, name: str, *others: Any) -> None:
            super().__init__(member, name, *others)
            self._send, send = self.say, self._send
            self.called, self.send = name, send

        def say(self, message: MemberMessage) -> bool:
            if isinstance(message, Settled | TaskDone):
                told.append((world.now, self.called, message))
            return self.send(message)

    world = World(seed, Plan(tasks=12))
    world.worker_class = Heard
    world.run()
    return told


@pytest.mark.parametrize("seed", range(4))
def test_a_task_that_is_done_is_one_message_with_its_loss(seed: int) -> None:
    told = told_by_workers(seed)
    dones = [message for _, _, message in told if isinstance(message, TaskDone)]
    assert sorted(done.task for done in dones if done.loss is not None) == list(range(12))
    # Progress comes seldom, and never together with the end of a task.
    last: dict[str, float] = {}
    for now, name, message in told:
        if isinstance(message, Settled):
            assert now - last.get(name, -PROGRESS_SECONDS) >= PROGRESS_SECONDS
        if message.loss is not None:  # what is repeated says nothing new
            last[name] = now


def test_a_watermark_lets_go_of_the_tasks_before_it() -> None:
    said: list[MemberMessage] = []
    stub: Any = mock.MagicMock()
    worker = PsWorker(
        MemberId("worker-0-1"), "worker-0-1", stub, stub, stub, stub, stub, None, stub,
        lambda message: bool(said.append(message)), LoopSettings(1.0, "fail", None, "keras", None, 1), lambda end: None, False,
    )  # fmt: skip
    for message in (
        Placed((), (), (), 0, "", None, 9),
        Leased(3, 1, 0),
        Leased(4, 0, 0),
        Watermark(4, 0, ()),
    ):
        worker.feed(Received(message))
    worker.feed(Connected())
    (enroll,) = [one for one in said if isinstance(one, Enroll)]
    assert enroll.holds == (Holding(4, 0),)
