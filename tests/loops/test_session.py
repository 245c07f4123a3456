"""A loop in a group: placeholders, breaks of a view in the middle of a pass, joiners, and the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.control.protocol.messages import (
    Evicted,
    Exported,
    Failed,
    Finished,
    NewView,
    Note,
    Pending,
    ProgramFailed,
    Progress,
    Stop,
    StopJob,
)
from elasticdl.control.protocol.view import ViewId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.worker.allreduce import runner
from elasticdl.worker.loop.patience import Patience
from tests.loops.group import Program, first_reports
from tests.worker.synchronous import SECONDS, view

PLAN = LoopPlan(8, 2, 1, False)
SCHEDULE = PLAN.schedule()
DONE = Finished("done")

Made = Callable[..., Program]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Make programs that reach each other, numbered from 0."""
    programs: list[Program] = []

    def make(**settings: Any) -> Program:
        programs.append(Program(tmp_path, len(programs), **settings))
        return programs[-1]

    yield make
    for one in programs:
        one.process.close()


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Do something that waits for the master."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def first_view(*programs: Program, lanes: int = 2, **more: Any) -> NewView:
    peers = [one.process.peer for one in programs]
    return NewView(view(1, *peers, at=SCHEDULE.start(lanes), lanes=lanes, **more))


def last_view(*programs: Program) -> None:
    """Answer the promises of a group at the end of its data, and end the job."""
    report = first_reports(*programs)[0]
    peers = [one.process.peer for one in programs]
    final = view(
        report.sealed + 1,
        *peers,
        base=report.state,
        at=report.position,
        exporter=0,
        sources=(None,) * len(peers),
    )
    for one in programs:
        one.process.tell(NewView(final))
    programs[0].process.hear(Exported)
    for one in programs:
        one.process.tell(DONE)


def test_two_workers_share_the_batches_of_each_step(made: Made) -> None:
    a, b = made().start(), made().start()
    for one in (a, b):
        one.process.tell(first_view(a, b))
    last_view(a, b)
    assert (a.join(), b.join()) == ("finished", "finished")
    assert a.passes == [(1, [0, 1], True, -1.5), (2, [4, 5], True, -7.0)]
    assert b.passes == [(1, [2, 3], True, -1.5), (2, [6, 7], True, -7.0)]
    digests = [
        note.text
        for one in (a, b)
        for note in one.process.said
        if isinstance(note, Note) and note.kind == "digest"
    ]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert a.process.left[0].code == b.process.left[0].code == 0


def test_the_loss_of_a_step_is_that_of_the_batches_whose_loss_is_said(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 0.0)
    a, b = made(losses={2: 4.0}).start(), made(losses={}).start()
    for one in (a, b):
        one.process.tell(first_view(a, b))
    last_view(a, b)
    assert (a.join(), b.join()) == ("finished", "finished")
    said = [one for one in a.process.said if isinstance(one, Progress)]
    assert [(one.state.step, one.loss) for one in said] == [(0, None), (1, None), (2, 4.0)]


def test_steps_without_a_loss_are_told_as_seldom_as_others(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 1000.0)
    a = made(losses={}).start()
    a.process.tell(first_view(a, lanes=1))
    last_view(a)
    assert a.join() == "finished"
    assert [one.state.step for one in a.process.said if isinstance(one, Progress)] == [0, 1, 4]


def test_a_worker_without_a_batch_runs_its_body_on_a_placeholder(made: Made) -> None:
    a, b = made(), made()
    progress: list[int] = []
    b.moments["computes 2"] = lambda: progress.append(b.process.beats[-1][2])
    b.moments["computes 3"] = lambda: progress.append(b.process.beats[-1][2])
    for one in (a, b):
        one.start()
        one.process.tell(first_view(a, b, lanes=1))
    last_view(a, b)
    assert (a.join(), b.join()) == ("finished", "finished")
    assert [(step, committed, weight) for step, _, committed, weight in a.passes] == [
        (1, True, -0.5), (2, True, -3.0), (3, True, -7.5), (4, True, -14.0),
    ]  # fmt: skip
    assert [one[::2] for one in b.passes] == [one[::2] for one in a.passes]
    assert b.weight == a.weight
    assert {tuple(one[1]) for one in b.passes} == {(0, 1)}
    assert [one % 2 for one in progress] == [1, 1], (
        "it is at work meanwhile, so that one that hangs is replaced"
    )


def test_more_batches_than_workers_commit_with_the_last_pass(made: Made) -> None:
    a = made(global_batch_size=4).start()
    a.process.tell(first_view(a))
    last_view(a)
    assert a.join() == "finished"
    assert a.passes == [
        (1, [0, 1], False, 0.0),
        (1, [2, 3], True, -1.5),
        (2, [4, 5], False, -1.5),
        (2, [6, 7], True, -7.0),
    ]


def test_a_batch_survives_the_loss_of_others_and_theirs_come_here(made: Made) -> None:
    a, b = made(), made()

    def lose() -> None:
        a.process.hear(Progress, lambda progress: progress.state.step == 1)
        a.process.tell(Stop(ViewId(1)))
        [promise] = first_reports(a)
        alone = view(2, a.process.peer, base=promise.state, at=promise.position, sources=(None,))
        a.process.tell(NewView(alone))
        b.process.tell(Evicted("left out"))

    b.moments["computes 2"] = lose
    a.start()
    b.start()
    for one in (a, b):
        one.process.tell(first_view(a, b))
    assert b.join() == "left with 3"
    last_view(a)
    assert a.join() == "finished"
    assert a.passes == [(1, [0, 1], True, -1.5), (2, [4, 5], False, -1.5), (2, [6, 7], True, -7.0)]


def test_a_joiner_gets_what_the_program_did_after_the_step(made: Made) -> None:
    a, b = made(num_epochs=3), made(num_epochs=3)
    a.moments["after 1"] = lambda: a.process.tell(Pending(ViewId(1)))
    a.start()
    a.process.tell(first_view(a, lanes=2))
    report = first_reports(a)[0]
    b.start()
    peers = [a.process.peer, b.process.peer]
    second = NewView(view(2, *peers, base=report.state, at=report.position, sources=(None, a.process.id)))
    a.process.tell(second)
    b.process.tell(second)
    last_view(a, b)
    assert (a.join(), b.join()) == ("finished", "finished")
    assert a.weight == b.weight
    assert a.job.state["after"] == b.job.state["after"] == a.job.steps
    committed = [[one[0] for one in program.passes if one[2]] for program in (a, b)]
    assert committed[1] == committed[0][report.state.step :]


def test_stop_ends_training_after_the_step_under_way(made: Made) -> None:
    a = made(num_epochs=100)
    a.moments["after 3"] = lambda: a.job.stop("enough")
    a.start()
    a.process.tell(first_view(a, lanes=2))
    assert a.process.hear(StopJob).reason == "enough"
    last_view(a)
    assert a.join() == "finished"
    assert [one[0] for one in a.passes if one[2]] == [1, 2, 3]


def test_a_program_that_leaves_its_loop_is_a_failure(made: Made) -> None:
    a = made(num_epochs=100)

    def leave() -> None:
        raise RuntimeError("leaves")

    a.moments["after 2"] = leave
    a.start()
    a.process.tell(first_view(a, lanes=2))
    assert a.join() == "RuntimeError: leaves"
    end = in_background(a.session.finish)
    failed = a.process.hear(ProgramFailed)
    assert "the program ended after step 2, before its data did" in failed.traceback
    a.process.tell(DONE)
    end.join(SECONDS)
    assert a.process.left


def test_a_member_that_leaves_its_loop_fails_the_job_although_others_continue(made: Made) -> None:
    """Within a step: the others wait in the next one until the job ends."""
    a, b = made(num_epochs=100), made(num_epochs=100)

    def leave() -> None:
        raise RuntimeError("leaves")

    b.moments["after 1"] = leave
    for one in (a, b):
        one.start()
        one.process.tell(first_view(a, b))
    assert b.join() == "RuntimeError: leaves"
    end = in_background(b.session.finish)
    failed = b.process.hear(ProgramFailed)
    assert "the program ended after step 1, before its data did" in failed.traceback
    for one in (a, b):
        one.process.tell(Failed("over"))
    assert a.join() == "left with 1"
    assert [one[0] for one in a.passes if one[2]] == [1]
    end.join(SECONDS)
    assert b.process.left


def test_what_the_program_raises_is_told(made: Made) -> None:
    a = made(num_epochs=100)

    def fail() -> None:
        raise ValueError("of the program")

    a.moments["computes 3"] = fail
    a.start()
    a.process.tell(first_view(a, lanes=2))
    assert a.join() == "ValueError: of the program"
    told = in_background(lambda: a.session.fail(ValueError("of the program")))
    failed = a.process.hear(ProgramFailed)
    assert failed.traceback.startswith("ValueError: of the program")
    assert failed.step == 2
    a.process.tell(DONE)
    told.join(SECONDS)


def test_a_worker_with_another_plan_is_refused(made: Made) -> None:
    a = made(count=9)
    a.process.agreed = PLAN
    a.start()
    assert "reads other data than the job: records (9 and 8)" in a.join()


def test_programs_that_diverge_fail_the_job(made: Made) -> None:
    a, b = made(), made()
    b.moments["after 1"] = lambda: b.job.state.__setitem__("rate", 0.5)
    for one in (a, b):
        one.start()
        one.process.tell(first_view(a, b))
    for one in (a, b):
        failed = one.process.hear(ProgramFailed)
        assert "no longer in the same state before step 2" in failed.traceback
        one.process.tell(Finished("over"))
        assert one.join() == "left with 0"


def test_a_state_that_is_not_finite_fails_the_job(made: Made) -> None:
    a = made()
    a.job.state["weight"] = a.weight
    a.moments["computes 2"] = lambda: a.session._running()._adapter.state._sum.fill(np.nan)  # type: ignore[attr-defined]
    a.start()
    a.process.tell(first_view(a, lanes=2))
    failed = a.process.hear(ProgramFailed)
    assert "the gradient of step 2 is not finite" in failed.traceback
    a.process.tell(Finished("over"))
    assert a.join() == "left with 0"


def test_signs_of_life_end() -> None:
    signs: list[int] = []
    patience = Patience(lambda: signs.append(1))
    with patience.during(0.0):
        pass
    patience.begin(1000.0)
    patience.end()
    patience.end()
    assert signs == []
