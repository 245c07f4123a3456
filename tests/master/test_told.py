"""Who is looked at again after an event of a job with parameter servers."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Acknowledged, Data, ProgramFailed, Stop, TaskKind, TaskLeased
from elasticdl.control.protocol.psmessages import (
    EndTraining,
    FoundModel,
    Model,
    Placed,
    RevokeTask,
    Watermark,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.master.core import events
from elasticdl.master.core.done import FIRST
from elasticdl.master.ps.leases import Lease
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.told import Told
from tests.master.psrig import MODEL, Rig, copied, member

SERVER, FIRST_WORKER, SECOND_WORKER = 1, 2, 3
LINKS = {
    connection: Link(member=member(name), name=name)
    for connection, name in ((SERVER, "ps-0-1"), (FIRST_WORKER, "worker-0-1"), (SECOND_WORKER, "worker-1-1"))
}
ALL, SOME = object(), object()
BEFORE = Told((ALL,), (SOME,), LINKS, {}, {})
LEASED = TaskLeased(TaskKind.EVALUATE, StateId(2, ViewId(0)), 0, b"")


def test_nothing_has_changed_as_long_as_all_values_are_the_same() -> None:
    assert Told((ALL,), (SOME,), LINKS, BEFORE.held, BEFORE.evaluating).is_as(BEFORE)
    changes = (
        {"to_all": (object(),)},
        {"to_some": (object(),)},
        {"links": {**LINKS}},
        {"held": {"a": ()}},
        {"evaluating": {member("worker-0-1"): LEASED}},
    )
    assert not any(replace(BEFORE, **change).is_as(BEFORE) for change in changes)
    assert not BEFORE.is_as(Told())


def test_what_concerns_all_is_looked_at_for_all() -> None:
    assert replace(BEFORE, to_all=(object(),)).since(BEFORE, None) == LINKS
    assert BEFORE.since(Told(), None) == LINKS


@pytest.mark.parametrize(
    ("change", "concerned", "workers"),
    [
        ({"to_some": (object(),)}, None, set()),
        ({"to_some": (object(),)}, SECOND_WORKER, {SECOND_WORKER}),
        ({"held": {"worker-0-1": (Lease(FIRST, 0, 0),)}}, None, {FIRST_WORKER}),
        ({"evaluating": {member("worker-1-1"): LEASED}}, None, {SECOND_WORKER}),
        ({"links": {**LINKS, SECOND_WORKER: replace(LINKS[SECOND_WORKER])}}, None, {SECOND_WORKER}),
    ],
)
def test_of_what_concerns_some_servers_learn_and_the_worker_that_it_is_about(
    change: dict[str, object], concerned: int | None, workers: set[int]
) -> None:
    assert replace(BEFORE, **change).since(BEFORE, concerned).keys() == {SERVER, *workers}  # type: ignore[arg-type]


def test_workers_that_say_nothing_hear_of_the_data_the_model_servers_and_an_early_end() -> None:
    rig = Rig()
    for name in ("worker-0-1", "worker-1-1"):
        rig.connect(name)
    rig.event(events.DataFound(rig.shards))
    assert len(rig.heard("worker-1-1", Data)) == 1
    rig.say("worker-0-1", FoundModel(MODEL))
    assert len(rig.heard("worker-1-1", Model)) == 1
    for name in ("ps-0-1", "ps-1-1", "ps-2-1"):
        rig.connect(name)
    assert [placed.servers for placed in rig.heard("worker-1-1", Placed)] == [(0, 1), (0, 1, 2)]
    copied(rig)
    assert [placed.servers for placed in rig.heard("worker-1-1", Placed)] != []
    rig.event(events.StopAsked(1, "enough"))
    assert len(rig.heard("worker-1-1", Stop)) == 1


def test_a_worker_that_has_nothing_to_do_hears_which_tasks_are_done_and_who_writes_the_result() -> None:
    rig = Rig(max_step=4)
    rig.start("worker-0-1", "worker-1-1")
    rig.told.clear()
    rig.finish("worker-0-1", 0)
    assert rig.heard("worker-1-1", Watermark) == [Watermark(1, 0, ())]
    rig.finish("worker-0-1", 1)
    assert rig.heard("worker-0-1", WriteResult) == [WriteResult(4, 1)]
    assert rig.heard("worker-1-1", EndTraining) == [EndTraining(4)]
    rig.die("worker-0-1")
    assert rig.heard("worker-1-1", WriteResult) == [WriteResult(4, 2)]


def test_a_worker_hears_that_its_error_is_journalled() -> None:
    rig = Rig()
    rig.start("worker-0-1", "worker-1-1")
    rig.finish("worker-0-1", 0)
    rig.say("worker-1-1", ProgramFailed("program", "ValueError at m.py", "", "ValueError: no", 2))
    assert rig.heard("worker-1-1", Acknowledged) == [Acknowledged("failed")]


def test_a_worker_that_was_left_out_hears_when_another_one_has_taken_its_tasks() -> None:
    rig = Rig(wave=2)
    rig.start("worker-0-1")
    rig.silent.add("worker-0-1")
    rig.tick(12.0)
    assert rig.announced(EventKind.EVICTED)
    assert rig.heard("worker-0-1", RevokeTask) == []  # they are nobody's
    rig.connect("worker-1-1")
    assert rig.heard("worker-0-1", RevokeTask) != []
