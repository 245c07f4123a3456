"""What people are told of a group of which nobody can say whether it lives."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position
from elasticdl.master.reporting.statusview import all_lost
from elasticdl.spec.edge import build, from_arguments

SPEC = build(from_arguments({"model_def": "m.model", "training_data": "data", "job_name": "job"}))
TAINT = "kubectl taint node n1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
DEAD = "kubectl annotate --overwrite job job --namespace=default elasticdl.org/dead=worker-1-1"

MIXED = "all workers that are not dead"


def view() -> View:
    members = tuple(Peer(MemberId(str(n)), f"worker-{n}-1", "unix:/x") for n in range(2))
    return View(
        id=ViewId(2),
        members=members,
        base=StateId(5, ViewId(1)),
        position=Position(0, 0, 2, 0),
        first=(0, 1),
        later=(0, 1),
        wave_lanes=2,
        sources=(None, None),
    )


@pytest.mark.parametrize(
    ("dead", "unproven", "who", "where", "command"),
    [
        (
            set(),
            {"worker-0-1": "n1", "worker-1-1": "n1"},
            "all workers",
            "on n1, of which nothing is heard",
            TAINT,
        ),
        ({"worker-0-1"}, {"worker-1-1": "n1"}, MIXED, "on n1, of which nothing is heard", TAINT),
        ({"worker-0-1"}, {"worker-1-1": ""}, MIXED, "in pods that were deleted by force", DEAD),
    ],
)
def test_a_group_that_may_be_alive(
    dead: set[str], unproven: dict[str, str], who: str, where: str, command: str
) -> None:
    said = f"{who} are {where}; they may be alive, so the job waits. If they are dead, say so: {command}"
    assert all_lost(view(), dead, unproven, SPEC) == said


@pytest.mark.parametrize(
    ("dead", "unproven"),
    [(set(), {"worker-0-1": "n1"}), ({"worker-0-1"}, {}), ({"worker-0-1", "worker-1-1"}, {})],
)
def test_a_group_of_which_somebody_knows(dead: set[str], unproven: dict[str, str]) -> None:
    assert all_lost(view(), dead, unproven, SPEC) == ""


def test_no_group() -> None:
    assert all_lost(None, set(), {"worker-0-1": "n1"}, SPEC) == ""
