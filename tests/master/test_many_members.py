"""What a synchronous master does for each member does not grow with their number, and what it does not look at changes nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from benchmarks.scale import Group
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Lost
from elasticdl.control.protocol.view import Peer
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.events import Beat, ConnectionLost, Event, Heard, Tick, WorkerEnded
from tests.master.test_cost import instructions

RECORDS = 1_000_000


def begun(members: int) -> Group:
    """Return a group that trains and has committed a step."""
    group = Group(members, RECORDS)
    group.together(event for index in range(members) for event in group.comes(f"worker-{index}-1"))
    group.together(group.heals())
    group.beats(group.view.members)
    group.commits()
    return group


def loss(group: Group, lost: int) -> None:
    group.loses(group.view.members[1 : 1 + lost], lambda peer: WorkerEnded(peer.name, "killed by SIGKILL"))


@pytest.mark.parametrize(
    ("what", "do"),
    [
        ("one is lost", lambda group: loss(group, 1)),
        ("a tenth is lost", lambda group: loss(group, len(group.view.members) // 10)),
        ("one joins", lambda group: group.joins("worker-9999-1")),
    ],
)
def test_a_view_change_costs_as_much_for_each_member_however_many_there_are(
    what: str, do: Callable[[Group], None]
) -> None:
    costs = []
    for members in (20, 200):
        group = begun(members)
        costs.append(instructions(lambda group=group: do(group)) / members)  # type: ignore[misc]
    assert costs[1] < 1.3 * costs[0], what


def test_a_step_and_a_tick_cost_the_same_however_many_members_there_are() -> None:
    costs = []
    for members in (20, 200):
        group = begun(members)
        group.give(Tick())
        costs.append(instructions(lambda group=group: group.give(Tick())))  # type: ignore[misc]
    assert costs[0] == costs[1]


def test_nobody_is_suspected_before_the_time_until_which_all_are_well() -> None:
    assert sum(map(calm_moments, range(20))) > 100


def calm_moments(seed: int) -> int:
    """Let anything happen to a group; return how often nobody had to be looked at. What that says is what a look says."""
    chance = random.Random(seed)
    group = begun(4)
    known, calm = {peer.name: peer for peer in group.view.members}, 0

    def anything(peer: Peer) -> Event:
        view, step = group.view, group.state.step
        return chance.choice(
            [
                Tick(),
                *[Beat(peer.id, view.id, step, chance.randrange(4), chance.uniform(0, 1.0))] * 4,
                ConnectionLost(group.connections[peer.name]),
                Heard(group.connections[peer.name], Lost(view.id, step + 1, known["worker-1-1"].id, "EOF")),
                *group.seals([peer]),
            ]
        )

    for _ in range(150):
        group.now += chance.choice([0.0, 0.1, 0.1, 0.5, 0.5, 1.5, 5.0])
        event = anything(known[f"worker-{chance.randrange(4)}-1"])
        group.give(event)
        if chance.random() < 0.05:
            group.together(list(group.comes(f"worker-{chance.randrange(4)}-1")))
        master = group.master
        assert isinstance(master, AllReduceMaster)
        looked = replace(master.liveness, calm_until=-math.inf)
        exact = looked.suspects(group.now, master, master.links, master.steps)
        assert master.liveness.suspects(group.now, master, master.links, master.steps) == exact
        calm += group.now < master.liveness.calm_until
    return calm
