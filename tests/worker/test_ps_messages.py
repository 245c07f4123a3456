"""What a worker of a job with parameter servers says to its master."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.psmessages import Settled, TaskDone
from elasticdl.worker.events import Send
from elasticdl.worker.ps.events import Instruction, PsEvent
from elasticdl.worker.ps.machine import PsMember
from tests.simulation.servers.world import Plan, World

PROGRESS_SECONDS = 0.2


def told_by_workers(seed: int) -> list[tuple[float, str, Settled | TaskDone]]:
    """Return when a worker told what of its tasks, in a job that nothing befalls."""
    told: list[tuple[float, str, Settled | TaskDone]] = []

    class Heard(PsMember):
        def handle(self, now: float, event: PsEvent) -> tuple[Instruction, ...]:
            instructions = super().handle(now, event)
            for one in instructions:
                if isinstance(one, Send) and isinstance(one.message, Settled | TaskDone):
                    told.append((now, self._name, one.message))
            return instructions

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
