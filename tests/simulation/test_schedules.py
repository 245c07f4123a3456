"""Thousands of seeded schedules of the real state machines, without a violation; and what makes a failing one useful: it replays."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from elasticdl.master.core import events as to_master
from tests.simulation import schedules
from tests.simulation.mistakes import looking
from tests.simulation.mistakes.members import DonorGoesOn
from tests.simulation.oracle import Violation
from tests.simulation.world import World

BATCH = 200


@pytest.mark.parametrize("batch", range(10))
def test_no_schedule_breaks_a_promise(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            schedules.run(seed)
        except Violation as violation:
            pytest.fail(f"{violation}; replay: python -m tests.simulation --seed {seed} --trace")


class Bursts(World):
    """Its master mostly has more at hand than what a member says, and looks at what follows with the next tick."""

    def is_in_burst(self, event: Any) -> bool:
        is_of_member = isinstance(
            event, to_master.Heard | to_master.ConnectionOpened | to_master.ConnectionLost
        )
        return is_of_member and self.random.random() < 0.7


def test_no_schedule_breaks_a_promise_when_a_master_takes_many_events_together() -> None:
    for seed in range(BATCH):
        schedules.run(seed, Bursts)


def test_a_master_whose_worker_has_gone_to_another_one_is_replaced_although_all_leave() -> None:
    schedules.run(41663)


@pytest.mark.parametrize(
    "seed",
    [329173, 355527, 390996],
    ids=[
        "a last member that drains beside one that lives",
        "an earlier job's wave",
        "a stop without a journal",
    ],
)
def test_schedules_that_found_something(seed: int) -> None:
    schedules.run(seed)


def test_a_schedule_replays_event_by_event() -> None:
    first: list[str] = []
    second: list[str] = []
    schedules.run(5, trace=first.append)
    schedules.run(5, trace=second.append)
    assert len(first) > 100
    assert first == second


def test_a_failing_schedule_replays_with_the_same_violation() -> None:
    found = looking.find(DonorGoesOn, 50)
    assert found is not None
    assert looking.find(DonorGoesOn, found[0] + 1) == found


def test_replay_does_not_depend_on_the_hash_seed() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "11", "--trace"]
    runs = [
        subprocess.run(
            command,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "python"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        for seed in ("1", "2")
    ]
    assert runs[0].returncode == 0, runs[0].stdout[-2000:] + runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
