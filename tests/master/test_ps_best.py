"""The checkpoint of the best barrier: when it is cut, what waits for it, and when it is given up (B4)."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.messages import Barrier, GateOpen
from elasticdl.control.protocol.psmessages import BarrierPassed, FoundMetrics, Holding, Leased, Placed
from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core import events
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import (
    MOST_BARRIERS,
    CutRecord,
    EvaluatedRecord,
    FailedRecord,
    ResumedRecord,
    read_journal,
)
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.ps.snapshots import LAST_ATTEMPTS, LAST_SECONDS
from elasticdl.master.reporting.history import EventHistory
from elasticdl.master.reporting.psstatusview import PsStatusView
from elasticdl.spec.edge import build, from_arguments
from tests.master.psrig import EVALUATION, MODEL, Rig, cut_slots, write_cut
from tests.master.test_ps_evaluations import FIRST, SECOND, evaluate, state, train


def begun(best: str = "val_loss", **settings: object) -> Rig:
    """Bring a job to its first barrier, at task 3."""
    rig = Rig(evaluation=EVALUATION, snapshots="/checkpoints", checkpoint_steps=200, best=best, **settings)  # type: ignore[arg-type]
    rig.start(FIRST)
    rig.say(FIRST, FoundMetrics("metrics"))
    train(rig, FIRST)
    return rig


def score(rig: Rig, value: float) -> None:
    evaluate(rig, FIRST, values=(("val_loss", value),))


def cuts(rig: Rig) -> list[tuple[int, bool]]:
    return [(one.position.low, one.best) for one in rig.journal if isinstance(one, CutRecord)]


def test_a_best_barrier_is_cut_before_anything_beyond_is_leased() -> None:
    rig = begun()
    score(rig, 0.5)
    assert cuts(rig) == [(3, True)]
    rig.tick(1.0)
    assert rig.heard(FIRST, Leased) == []
    write_cut(rig, until=3)
    (manifest,) = [one for one in rig.out if isinstance(one, events.WriteManifest)]
    assert (manifest.best, [one.task for one in manifest.barriers]) == (True, [3])
    assert train(rig, FIRST) == [3, 4]


@pytest.mark.parametrize(("best", "cut"), [("val_loss", [3, 8]), ("val_loss:max", [3, 5]), ("other", [])])
def test_only_what_is_better_than_all_before_is_cut(best: str, cut: list[int]) -> None:
    rig = begun(best)
    for value in (0.5, 0.7, 0.4):
        score(rig, value)
        if rig.master.snapshots.under_way(rig.master.journal):
            write_cut(rig, until=0)
        train(rig, FIRST)
    assert [low for low, best in cuts(rig) if best] == cut


def test_a_slot_that_holds_what_is_beyond_makes_it_void_and_the_job_goes_on() -> None:
    rig = begun()
    score(rig, 0.5)
    write_cut(rig, until=4)
    assert ["later tasks" in one.text for one in rig.announced(EventKind.UNSAVED)] == [True]
    assert train(rig, FIRST) == [3, 4]
    assert cuts(rig) == [(3, True)]


def test_one_whose_manifest_can_not_be_written_is_given_up() -> None:
    rig = begun()
    score(rig, 0.5)
    rig.event(events.ManifestWritten(1, "", "the disk is full"))
    assert train(rig, FIRST) == [3, 4]


def test_a_later_master_makes_it_that_was_under_way() -> None:
    rig = begun()
    score(rig, 0.5)
    rig.begin()
    for server in range(2):
        rig.connect(f"ps-{server}-1", server=server)
    rig.connect(FIRST)
    rig.tick(2.0)
    assert rig.heard(FIRST, Leased) == []
    assert cuts(rig) == [(3, True), (3, True)]
    write_cut(rig, until=3)
    rig.tick(1.0)
    assert train(rig, FIRST) == [3, 4]


def test_a_later_master_lets_a_wave_beyond_the_best_barrier_come_to_its_end() -> None:
    """It does not know that all slots are cut, and who has a task of the wave waits for the others."""
    rig = Rig(evaluation=EVALUATION, snapshots="/checkpoints", checkpoint_steps=200, best="val_loss", wave=2)
    rig.start(FIRST, SECOND)
    for worker in (FIRST, SECOND):
        rig.say(worker, FoundMetrics("metrics"))
    train(rig, FIRST, SECOND)
    evaluate(rig, FIRST, SECOND)
    rig.tick()
    assert (cuts(rig), rig.heard(FIRST, Leased)) == ([(6, True)], [])
    cut_slots(rig, until=6)
    assert [one.task for one in rig.heard(FIRST, Leased)] == [6, 8]
    rig.die(SECOND)
    rig.begin()
    for server in range(2):
        rig.connect(f"ps-{server}-1", server=server)
    rig.connect(FIRST, holds=(Holding(6, 0),))
    rig.tick(2.0)
    assert [one.task for one in rig.heard(FIRST, Leased)] == [7]
    rig.finish(FIRST, 6, 7)
    assert [one.task for one in rig.heard(FIRST, Leased)] == [8, 9]
    assert cuts(rig) == [(6, True)]


def test_with_callbacks_both_are_waited_for() -> None:
    rig = begun(follows=True)
    score(rig, 0.5)
    rig.say(FIRST, BarrierPassed(state(6), ""))
    rig.tick(1.0)
    assert rig.heard(FIRST, Leased) == []
    write_cut(rig, until=3)
    assert train(rig, FIRST) == [3, 4]


def test_the_last_checkpoint_is_the_best_one_if_the_last_barrier_is() -> None:
    rig = begun()
    for value in (0.5, 0.6, 0.7, 0.4):
        score(rig, value)
        if rig.master.snapshots.under_way(rig.master.journal):
            write_cut(rig, until=3)
        train(rig, FIRST)
    assert cuts(rig) == [(3, True), (10, True)]


def test_the_best_of_the_last_barrier_is_tried_as_often_as_the_last_one_while_callbacks_run() -> None:
    rig = begun(follows=True)
    for value in (0.5, 0.6, 0.7, 0.4):
        score(rig, value)
        last = rig.master.journal.last_barrier
        assert last is not None
        if last.task < 10:
            rig.say(FIRST, BarrierPassed(last.state, ""))
        if last.task == 3:
            write_cut(rig, until=3)
        train(rig, FIRST)
    assert not rig.master.ends
    for _ in range(5):
        before = cuts(rig)
        rig.event(events.ManifestWritten(len(before), "", "the disk is full"))
        assert cuts(rig) == before, "not at once"
        rig.tick(LAST_SECONDS)
    assert cuts(rig) == [(3, True), *[(10, True)] * LAST_ATTEMPTS]
    rig.say(FIRST, BarrierPassed(last.state, ""))
    assert rig.master.ends
    rig.tick(LAST_SECONDS)
    assert len(cuts(rig)) == 1 + LAST_ATTEMPTS


def test_a_job_that_continues_knows_what_was_the_best() -> None:
    known = EvaluatedRecord(state(4, 2), (("val_loss", 0.5),), 0.0, TaskNumber(2), 0)
    path = "/checkpoints/checkpoint-5/manifest.json"
    resumed = ResumedRecord(7, path, Done(TaskNumber(2)), 3, None, MODEL, 0, (known,))
    rig = begun(resumed=resumed)
    assert rig.master.journal.evaluated == {known.state: known}
    score(rig, 0.6)
    assert cuts(rig) == []
    train(rig, FIRST)
    score(rig, 0.4)
    assert cuts(rig) == [(5, True)]


@pytest.mark.parametrize(("more", "refused"), [(4, False), (3, True)])
def test_barriers_of_an_earlier_job_count_where_callbacks_have_to_pass_all(more: int, refused: bool) -> None:
    """Four come after task 2; the earlier job has waited more often in the same tasks."""
    known = tuple(
        EvaluatedRecord(state(4, view), (("val_loss", 0.5),), 0.0, TaskNumber(2))
        for view in range(MOST_BARRIERS - more)
    )
    path = "/checkpoints/checkpoint-5/manifest.json"
    resumed = ResumedRecord(7, path, Done(TaskNumber(2)), MOST_BARRIERS, None, MODEL, 0, known)
    rig = Rig(evaluation=EVALUATION, follows=True, resumed=resumed)
    rig.start(FIRST)
    rig.tick()
    end = rig.master.journal.terminal
    assert (isinstance(end, FailedRecord) and "with those of the checkpoint" in end.reason) == refused


def test_the_best_barrier_is_known_however_many_come_after_it() -> None:
    barriers = [
        EvaluatedRecord(state(step), (("val_loss", 0.1 if step == 1 else 0.5),), 0.0, TaskNumber(1))
        for step in range(1, MOST_BARRIERS + 5)
    ]
    path = "/checkpoints/checkpoint-5/manifest.json"
    known = tuple(read_journal(barriers).evaluated.values())
    rig = begun(resumed=ResumedRecord(7, path, Done(TaskNumber(2)), 3, None, MODEL, 0, known))
    score(rig, 0.2)
    assert cuts(rig) == []
    train(rig, FIRST)
    score(rig, 0.05)
    assert cuts(rig) == [(5, True)]


@pytest.mark.parametrize("first", [True, False])
def test_callbacks_of_a_job_that_continues_pass_barriers_in_whatever_order_workers_and_servers_come(
    first: bool,
) -> None:
    """A worker that comes first knows no roll-back before slots are placed, and would take barriers for those of another one."""
    known = EvaluatedRecord(state(6, 2), (("val_loss", 0.5),), 0.0, TaskNumber(3), 0)
    path = "/checkpoints/checkpoint-5/manifest.json"
    resumed = ResumedRecord(7, path, Done(TaskNumber(3)), 3, None, MODEL, 0, (known,))
    rig = Rig(evaluation=EVALUATION, snapshots="/checkpoints", follows=True, resumed=resumed)
    rig.event(events.DataFound(rig.shards))
    names = ["ps-0-1", "ps-1-1"]
    for name in [FIRST, *names] if first else [*names, FIRST]:
        rig.connect(name)
    rig.tick()
    said = [type(message) for name, message in rig.told if name == FIRST]
    assert said.index(Placed) < said.index(GateOpen)
    assert rig.heard(FIRST, GateOpen) == [GateOpen(state(6, 2), known.values, Barrier(3, 0, False))]
    assert rig.heard(FIRST, Leased) == []
    rig.say(FIRST, BarrierPassed(state(6, 2), ""))
    assert [one.task for one in rig.heard(FIRST, Leased)] == [3, 4]


def test_people_see_what_a_job_waits_for_at_a_barrier() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_ps_pods": 2}))
    rig = begun(follows=True)

    def shown() -> tuple[str, str]:
        forces = (ReplicaSet(2, 1), ReplicaSet(2, 1))
        seen = PsStatusView(spec, rig.master, EventHistory(0.0), forces, Processes()).status("job", 1.0)
        return seen.state, seen.reason

    score(rig, 0.5)
    assert shown() == ("training", "the best model so far is being written, before training continues")
    write_cut(rig, until=3)
    assert shown() == ("training", "callbacks run after step 6, before training continues")
    rig.die(FIRST)
    assert shown() == ("waiting", "no worker is there; new ones are being started")
