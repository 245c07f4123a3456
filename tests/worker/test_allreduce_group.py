"""Loops of synchronous workers in one view: equal bits, states that go from one to the other, and what ends a view."""

from __future__ import annotations

import math
import threading

import pytest

from elasticdl.control.protocol.messages import (
    Evicted,
    Exported,
    Finished,
    Lost,
    NewView,
    NextView,
    Note,
    Pending,
    ProgramFailed,
    Stop,
)
from elasticdl.control.protocol.view import StateId, View
from elasticdl.worker.events import Exit, HealeeLeft, HealFailed, RingFailed, WorkCancelled
from tests.worker.synchronous import (
    SCHEDULE,
    SECONDS,
    START_STATE,
    Made,
    OnDevice,
    Watched,
    Worker,
    schedule,
    view,
)

DONE = Finished("done")
SHORT = 0.2
"""Seconds after which a peer that does not listen counts as lost."""


def finish(view: View, *workers: Worker) -> list[str]:
    """Wait for the result of a last view, end the job, and return the digests that its members have said."""
    exporter = workers[view.exporter or 0]
    assert exporter.hear(Exported).state == view.base
    for one in workers:
        assert one.end(DONE) == Exit(0, "done")
    return [note.text for one in workers for note in one.of(Note) if note.kind == "digest"]


# ------------------------------------------------------------------ together


def test_two_members_that_train_together_hold_the_same_bits(made: Made) -> None:
    a, b = made(), made()
    first = NewView(view(1, a.peer, b.peer))
    a.start(first)
    b.start(first)
    digests = finish(a.last_view(b), a, b)
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert a.adapter.done("compute") == [
        (1, 0, [0.0, 1.0]), (2, 0, [2.0, 3.0]), (3, 0, [0.0, 1.0]), (4, 0, [2.0, 3.0]),
    ]  # fmt: skip
    assert b.adapter.done("compute") == [
        (1, 1, [4.0, 5.0]), (2, 1, [6.0, 7.0]), (3, 1, [4.0, 5.0]), (4, 1, [6.0, 7.0]),
    ]  # fmt: skip
    assert a.adapter.weight == b.adapter.weight == -14.0
    assert a.adapter.done("logs") == b.adapter.done("logs")


@pytest.mark.parametrize("kind", [Watched, OnDevice])
@pytest.mark.parametrize("first", [(0, 0), (0, 1)], ids=["gives zeros first", "heals first"])
def test_a_member_that_joins_heals_from_one_that_trains(
    made: Made, first: tuple[int, int], kind: type[Watched]
) -> None:
    a, b = made(kind=kind), made(kind=kind)
    a.adapter.moments["compute"] = lambda: a.tell(Pending(view(1, a.peer).id))
    a.start(NewView(view(1, a.peer)))
    report = a.hear(NextView).report
    after_one = SCHEDULE.advance(SCHEDULE.start(2), 2)
    assert (report.state, report.position) == (StateId(1, 1), after_one)
    both = view(2, a.peer, b.peer, base=StateId(1, 1), at=after_one, first=first, sources=(None, a.id))
    a.tell(NewView(both))
    b.start(NewView(both))
    last = a.last_view(b)
    assert last.base == StateId(4, 2)
    digests = finish(last, a, b)
    assert len(digests) == 2
    assert len(set(digests)) == 1
    # the epoch's figures came with the state: two of its steps, of which this member saw one
    assert b.adapter.done("logs")[0] == a.adapter.done("logs")[1]
    assert b.adapter.done("logs")[0][0].epoch_loss == 3.5
    assert len(b.adapter.done("load")) == 1
    assert [one.acknowledged for one in a.seen(HealeeLeft)] == [True]
    (resumed,) = [note for note in a.of(Note) if note.kind == "committed-first"]
    assert (resumed.view, resumed.step, resumed.seconds is not None) == (2, 2, True)
    healing = ["healing", "healed", "serving"]
    assert [note.kind for one in (b, a) for note in one.of(Note) if note.kind in healing] == healing
    assert [fact for fact in b.audit() if fact.startswith("contributed 2 2")] == (
        [] if first == (0, 0) else ["contributed 2 2 1 0 1 1 2 0"]
    )


def test_who_makes_the_first_weights_gives_them_to_the_others(made: Made) -> None:
    a, b = made(data=schedule(epochs=1)), made(data=schedule(epochs=1))
    first = NewView(view(1, a.peer, b.peer, sources=("initial", a.id)))
    b.start(first)
    a.start(first)
    assert len(set(finish(a.last_view(b), a, b))) == 1
    assert (len(a.adapter.done("load")), len(b.adapter.done("load"))) == (0, 1)
    assert a.adapter.weight == b.adapter.weight == -7.0


def test_one_member_says_that_a_step_was_skipped(made: Made) -> None:
    a, b = made(on_nan="skip_step"), made(on_nan="skip_step")
    b.reader.values = {4: math.nan}
    first = NewView(view(1, a.peer, b.peer))
    a.start(first)
    b.start(first)
    a.last_view(b)
    assert a.adapter.weight == b.adapter.weight == -9.0
    notes = [[note.step for note in one.of(Note) if note.kind == "idle-step"] for one in (a, b)]
    assert notes == [[1, 3], []]


# ------------------------------------------------------------------ who writes


def test_callbacks_write_in_the_one_member_that_exports(made: Made) -> None:
    a, b = made(), made()
    first = NewView(view(1, a.peer, b.peer))
    a.start(first)
    b.start(first)
    finish(a.last_view(b, exporter=1), a, b)
    assert (a.adapter.done("end"), b.adapter.done("end")) == ([(4, False)], [(4, True)])
    assert (len(a.adapter.done("export")), len(b.adapter.done("export"))) == (0, 1)


def test_while_they_train_the_first_by_name_writes(made: Made) -> None:
    a, b = made(), made()
    wrote: list[tuple[str, bool]] = []
    for name, one in (("a", a), ("b", b)):
        one.adapter.moments["logs"] = lambda name=name, one=one: wrote.append((name, one.adapter.writes))  # type: ignore[misc]
    first = NewView(view(1, b.peer, a.peer))
    a.start(first)
    b.start(first)
    a.last_view(b)
    assert set(wrote) == {("a", True), ("b", False)}


# ------------------------------------------------------------------ what ends a view


def test_a_member_that_is_not_there_is_accused(made: Made) -> None:
    a, b = made(silence=SHORT), made()
    b.endpoint.close()
    shared = view(1, a.peer, b.peer)
    a.start(NewView(shared))
    assert a.hear(Lost) == Lost(shared.id, 1, b.id, "refused")
    assert a.seen(RingFailed) == [RingFailed(shared.id, 1, b.id, "refused")]
    report = a.hear(NextView).report
    assert (report.sealed, report.state, report.holds) == (shared.id, START_STATE, frozenset({0}))
    assert a.end(Evicted("late")) == Exit(3, "late")
    assert not a.of(ProgramFailed)


def test_a_member_that_has_sealed_ends_the_view_and_is_not_accused(made: Made) -> None:
    a, b = made(), made()
    shared = view(1, a.peer, b.peer)
    b.start(NewView(shared), Stop(shared.id))
    b.hear(NextView)
    a.start(NewView(shared))
    assert a.hear(Lost) == Lost(shared.id, 1, None, "stale")
    assert not a.of(ProgramFailed)


def test_a_seal_also_counts_for_a_view_that_has_not_come(made: Made) -> None:
    a, b = made(), made()
    b.start(NewView(view(1, b.peer)))
    b.hear(NextView)
    shared = view(2, a.peer, b.peer, sources=("initial", None))
    b.tell(Stop(shared.id), NewView(shared))
    a.start(NewView(shared))
    assert a.hear(Lost) == Lost(shared.id, 1, None, "stale")
    assert b.hear(NextView).report.sealed == 2


def test_a_seal_frees_who_waits_for_another_member(made: Made) -> None:
    a, b = made(), made()
    shared = view(1, a.peer, b.peer)
    b.endpoint.enter(shared.id, shared.digest)
    gives = threading.Event()
    a.adapter.moments["give"] = gives.set
    a.start(NewView(shared))
    assert gives.wait(SECONDS)
    a.tell(Stop(shared.id))
    report = a.hear(NextView).report
    assert (report.state, report.holds) == (START_STATE, frozenset({0}))
    assert a.end(Evicted("late")) == Exit(3, "late")
    assert a.seen(WorkCancelled) == [WorkCancelled()]
    assert not a.of(Lost)


def test_work_of_a_view_that_was_sealed_before_it_began_is_not_done(made: Made) -> None:
    a = made()
    a.start(NewView(view(1, a.peer)), Stop(view(1, a.peer).id))
    report = a.hear(NextView).report
    assert (report.sealed, report.state) == (1, None)
    assert a.seen(WorkCancelled) == [WorkCancelled()]
    # the next view finds it as it was
    a.tell(NewView(view(2, a.peer, sources=("initial",))))
    assert a.hear(NextView).report.state == StateId(4, 2)


def test_a_donor_that_is_not_there_is_accused(made: Made) -> None:
    a, b = made(silence=SHORT), made()
    b.endpoint.close()
    shared = view(3, b.peer, a.peer, first=(0, 0), sources=(None, b.id))
    a.start(NewView(shared))
    accused = a.hear(Lost)
    assert (accused.current, accused.step, accused.accused) == (3, 1, b.id)
    report = a.hear(NextView).report
    assert (report.state, report.holds) == (None, frozenset())
    assert not a.of(ProgramFailed)


def test_a_seal_frees_who_waits_for_its_donor(made: Made) -> None:
    a, b = made(), made()
    shared = view(3, b.peer, a.peer, sources=(None, b.id))
    a.start(NewView(shared))
    while a.hear(Note).kind != "healing":
        pass
    a.tell(Stop(shared.id))
    assert a.hear(NextView).report.state is None
    assert not a.seen(HealFailed)
    assert not a.of(Lost)


def test_a_donor_that_is_sealed_serves_no_more(made: Made) -> None:
    a, b = made(), made()
    shared = view(1, a.peer, b.peer, sources=("initial", a.id))
    a.start(NewView(shared))
    while a.hear(Note).kind != "serving":
        pass
    a.tell(Stop(shared.id))
    a.hear(NextView)
    b.start(NewView(shared))
    assert b.hear(Lost).accused == a.id
    assert b.hear(NextView).report.state is None
    assert not b.adapter.done("load")


# ------------------------------------------------------------------ the next view


@pytest.mark.parametrize(
    ("first", "second", "computed", "weight"),
    [
        ((0, 1), (0, 0), [(1, 0, [0.0, 1.0]), (1, 1, [4.0, 5.0])], -2.5),
        ((1, 0), (0,), [(1, 1, [4.0, 5.0]), (1, 0, [0.0, 1.0])], -0.5),
    ],
    ids=["kept", "dropped"],
)
def test_what_is_accumulated_is_kept_if_all_of_it_belongs_to_the_next_view(
    made: Made,
    first: tuple[int, ...],
    second: tuple[int, ...],
    computed: list[tuple[int, int, list[float]]],
    weight: float,
) -> None:
    """The second member of the first view is never there; then the first one continues alone, with two lanes or with one."""
    worker, gone = made(), made()
    shared = view(1, worker.peer, gone.peer, first=first)
    gone.endpoint.enter(1, shared.digest)
    waits = worker.adapter.moments
    applied: list[float] = []
    waits["give"] = lambda: worker.tell(Stop(shared.id))
    worker.start(NewView(shared))
    report = worker.hear(NextView).report
    assert (report.state, report.holds) == (START_STATE, frozenset({first.index(0)}))
    assert not worker.adapter.done("apply")
    waits["give"] = lambda: None
    waits["logs"] = lambda: applied.append(worker.adapter.weight)
    lanes = len(second)
    alone_now = view(2, worker.peer, at=SCHEDULE.start(lanes), first=second, lanes=lanes)
    worker.tell(NewView(alone_now))
    worker.hear(NextView)
    assert worker.adapter.done("compute")[:2] == computed
    assert applied[0] == weight
    assert worker.end(DONE) == Exit(0, "done")


def test_a_new_view_reads_ahead_what_is_now_its_own(made: Made) -> None:
    """With two lanes step 3 begins the next epoch; with one it begins the second task."""
    a, b = made(), made()
    shared = view(1, a.peer, b.peer)
    a.adapter.moments["give"] = lambda: a.tell(Stop(shared.id))
    a.start(NewView(shared))
    a.hear(NextView)
    a.adapter.moments["give"] = lambda: None
    assert a.chunks.wanted[-1] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    places = len(a.chunks.wanted)
    a.tell(NewView(view(2, a.peer, at=SCHEDULE.start(1), lanes=1)))
    a.hear(NextView)
    # the first chunk was kept, so the second is the first that is asked for
    rest = [(0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    assert a.chunks.wanted[places] == rest
    assert [records for _, _, records in a.adapter.done("compute")][:4] == [
        [0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0],
    ]  # fmt: skip
