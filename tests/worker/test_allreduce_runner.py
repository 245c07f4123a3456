"""The loop of a synchronous worker that is alone: what a step does, in which order, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from elasticdl.control.protocol.messages import (
    Acknowledged,
    Failed,
    Finished,
    NewView,
    NextView,
    Note,
    Pending,
    ProgramFailed,
    Progress,
    StopJob,
)
from elasticdl.control.protocol.view import StateId
from elasticdl.errors import BadData, BadModel
from elasticdl.reference import Callback
from elasticdl.worker.allreduce import runner
from elasticdl.worker.contract.allreduce import StepLogs
from elasticdl.worker.events import Applied, Exit, Tick
from tests.worker.synchronous import SCHEDULE, Made, OnDevice, Watched, Worker, feed, schedule, view

DONE = Finished("done")


def train(worker: Worker) -> None:
    """Let a worker train alone until the data has ended, and end its job."""
    worker.start(NewView(view(1, worker.peer)))
    worker.hear(NextView)
    assert worker.end(DONE) == Exit(0, "done")


# ------------------------------------------------------------------ a step


def test_steps_are_computed_in_order_and_committed(made: Made) -> None:
    worker = made()
    train(worker)
    first, second = [[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [6.0, 7.0]]
    assert worker.adapter.done("compute") == [
        (step, lane, records)
        for step, chunks in enumerate((first, second, first, second), 1)
        for lane, records in enumerate(chunks)
    ]
    assert worker.seen(Applied) == [Applied(StateId(step, 1)) for step in range(1, 5)]
    assert worker.adapter.weight == -(2.5 + 4.5 + 2.5 + 4.5)
    report = worker.of(NextView)[-1].report
    assert (report.state, report.position, report.holds) == (StateId(4, 1), after(4), frozenset())


def test_a_sum_stays_on_the_device_of_a_worker_that_is_alone(made: Made) -> None:
    worker, plain = made(kind=OnDevice), made()
    train(worker)
    train(plain)
    assert worker.adapter.digest() == plain.adapter.digest()
    assert worker.audit()[1:] == plain.audit()[1:]
    assert worker.adapter.done("apply") == plain.adapter.done("apply")
    assert (worker.adapter.done("give"), worker.adapter.done("take")) == ([], [(True,)] * 4)


def after(steps: int) -> Any:
    position = SCHEDULE.start(2)
    for _ in range(steps):
        position = SCHEDULE.advance(position, 2)
    return position


def test_the_audit_has_what_is_given_and_what_is_committed_before_it_is(made: Made) -> None:
    worker = made()
    at_give: list[tuple[list[str], int]] = []
    at_apply: list[tuple[str, int]] = []
    worker.adapter.moments["give"] = lambda: at_give.append((worker.audit()[-2:], len(worker.of(Progress))))
    worker.adapter.moments["apply"] = lambda: at_apply.append((worker.audit()[-1], len(worker.seen(Applied))))
    train(worker)
    # the first word about the progress is that of the first weights
    assert at_give[:2] == [
        (["contributed 1 1 0 0 0 0 2 0", "contributed 1 1 1 0 1 0 2 0"], 1),
        (["contributed 1 2 0 0 0 1 2 0", "contributed 1 2 1 0 1 1 2 0"], 2),
    ]
    assert at_give[2][0][0] == "contributed 1 3 0 1 0 0 2 0"
    assert at_apply == [(f"committed 1 {step} 4 1", step - 1) for step in range(1, 5)]
    assert worker.audit()[0] == f"base 1 0 1 {worker.id}"


def test_callbacks_get_the_figures_of_the_step_and_of_its_epoch(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 0.0)
    worker = made()
    train(worker)
    assert [logs for (logs,) in worker.adapter.done("logs")] == [
        StepLogs(1, 0, 2.5, False, 2.5),
        StepLogs(2, 0, 4.5, True, 3.5),
        StepLogs(3, 1, 2.5, False, 2.5),
        StepLogs(4, 1, 4.5, True, 3.5),
    ]
    assert [(one.state.step, one.loss, one.records) for one in worker.of(Progress)] == [
        (0, None, 0), (1, 2.5, 4), (2, 4.5, 8), (3, 2.5, 12), (4, 4.5, 16),
    ]  # fmt: skip


def test_of_quick_steps_the_first_is_told_and_the_last_before_anything_else(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 1000.0)
    worker = made()
    train(worker)
    assert [one.state.step for one in worker.of(Progress)] == [0, 1, 4]
    kinds = [type(one) for one in worker.said]
    assert kinds.index(NextView) == len(kinds) - 1 - kinds[::-1].index(Progress) + 1


def test_a_step_that_was_not_told_is_told_a_moment_later(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 1000.0)
    worker = made()
    told: list[int] = []

    def look() -> None:
        if worker.adapter.did[-1][1] == 4:  # three steps are committed
            worker.worker.feed(Tick())
            told.append(worker.of(Progress)[-1].state.step)

    worker.adapter.moments["compute"] = look
    train(worker)
    assert set(told) == {3}  # two chunks are computed for a step


def test_callbacks_run_before_the_commit_counts_as_applied(made: Made) -> None:
    worker = made()
    order: list[tuple[str, int]] = []
    for what in ("apply", "logs"):
        worker.adapter.moments[what] = lambda what=what: order.append((what, len(worker.seen(Applied))))  # type: ignore[misc]
    train(worker)
    assert order == [(what, step) for step in range(4) for what in ("apply", "logs")]


def test_the_heart_says_which_step_is_under_way_and_whether_this_member_works_at_it(made: Made) -> None:
    worker = made()
    at_compute: list[tuple[int, ...]] = []
    worker.adapter.moments["compute"] = lambda: at_compute.append(worker.beats[-1])
    train(worker)
    assert [beat[:2] for beat in at_compute] == [(1, step) for step in (1, 1, 2, 2, 3, 3, 4, 4)]
    progress = [beat[2] for beat in at_compute]
    assert progress == sorted(set(progress))
    assert all(number % 2 for number in progress)
    assert worker.beats[-1][2] % 2 == 0


class Stops(Callback):
    def on_step_end(self, logs: StepLogs) -> bool:
        return logs.step == 1


def test_no_work_follows_the_step_after_which_a_callback_stops_the_job(made: Made) -> None:
    worker = made(callbacks=[Stops()])
    worker.start(NewView(view(1, worker.peer)))
    assert worker.hear(StopJob).reason == "Stops asked for the end of training after step 1"
    report = worker.hear(NextView).report
    assert (report.state, report.holds) == (StateId(1, 1), frozenset())
    assert worker.end(DONE) == Exit(0, "done")
    assert [step for step, *_ in worker.adapter.done("compute")] == [1, 1]


# ------------------------------------------------------------------ what is missing or no number


def test_a_lane_whose_task_has_no_more_chunks_gives_nothing(made: Made) -> None:
    worker = made(data=schedule(6, 1))
    train(worker)
    assert worker.adapter.done("compute") == [
        (1, 0, [0.0, 1.0]), (1, 1, [4.0, 5.0]), (2, 0, [2.0, 3.0]),
    ]  # fmt: skip
    assert worker.adapter.done("apply") == [(4.0,), (2.0,)]
    assert worker.audit()[-2:] == ["contributed 1 2 0 0 0 1 2 0", "committed 1 2 2 1"]


def none_of_the_first(records: Sequence[float], mode: Any, metadata: Any) -> tuple[Any, Any]:
    return feed([one for one in records if one not in (0, 1, 4, 5)], mode, metadata)


@pytest.mark.parametrize("skipped", ["by feed", "as corrupt"])
def test_a_step_without_examples_is_committed_and_changes_nothing(made: Made, skipped: str) -> None:
    worker = made(data=schedule(epochs=1), convert=none_of_the_first if skipped == "by feed" else feed)
    bad = 0
    if skipped == "as corrupt":
        worker.reader.corrupt = {0, 1, 4, 5}
        bad = 2
    train(worker)
    assert [logs for (logs,) in worker.adapter.done("logs")] == [
        StepLogs(1, 0, None, False, None), StepLogs(2, 0, 4.5, True, 4.5),
    ]  # fmt: skip
    assert worker.adapter.weight == -4.5
    assert worker.audit()[1:4] == [
        f"contributed 1 1 0 0 0 0 2 {bad}", f"contributed 1 1 1 0 1 0 2 {bad}", "committed 1 1 4 0",
    ]  # fmt: skip


def test_a_chunk_counts_its_corrupt_records_as_read(made: Made) -> None:
    worker = made(data=schedule(epochs=1))
    worker.reader.corrupt = {5}
    train(worker)
    assert worker.adapter.done("apply") == [(3.0,), (4.0,)]
    assert worker.audit()[1:4] == [
        "contributed 1 1 0 0 0 0 2 0", "contributed 1 1 1 0 1 0 2 1", "committed 1 1 4 1",
    ]  # fmt: skip


@pytest.mark.parametrize(("what", "kind"), [("loss", Watched), ("gradient", Watched), ("gradient", OnDevice)])
def test_a_step_that_is_not_finite_fails_the_job(made: Made, what: str, kind: type[Watched]) -> None:
    def convert(records: Sequence[float], mode: Any, metadata: Any) -> tuple[Any, Any]:
        features, labels = feed(records, mode, metadata)
        wrong = labels if what == "loss" else features
        wrong[wrong == 6] = math.nan
        return features, labels

    worker = made(convert=convert, kind=kind)
    worker.start(NewView(view(1, worker.peer)))
    failure = worker.hear(ProgramFailed)
    assert (failure.kind, failure.signature, failure.step) == ("nan", "not finite at step 2", 1)
    assert f"the {what} of step 2 is " in failure.traceback
    assert worker.end(Failed("no")) == Exit(1, "no")
    assert (worker.adapter.weight, worker.audit()[-1].split()[0]) == (-2.5, "contributed")


def test_only_gradients_of_float32_are_shortened(made: Made) -> None:
    with pytest.raises(
        BadModel, match=r"--gradient_dtype=bfloat16: is for models of float32, and this one has .* float64"
    ):
        made(short_gradients=True)


def test_a_step_that_is_not_finite_is_skipped_where_that_is_wanted(made: Made) -> None:
    worker = made(data=schedule(epochs=1), on_nan="skip_step")
    worker.reader.values = {0: math.nan}
    train(worker)
    assert worker.adapter.weight == -4.5
    assert [logs for (logs,) in worker.adapter.done("logs")] == [
        StepLogs(1, 0, None, False, None), StepLogs(2, 0, 4.5, True, 4.5),
    ]  # fmt: skip
    (note,) = [one for one in worker.of(Note) if one.kind == "idle-step"]
    assert (note.view, note.step) == (1, 1)
    assert [fact for fact in worker.audit() if fact.startswith("committed")] == [
        "committed 1 1 4 0", "committed 1 2 4 1",
    ]  # fmt: skip


# ------------------------------------------------------------------ errors of the user's program


class Fails(Callback):
    def on_step_end(self, logs: StepLogs) -> None:
        if logs.step == 3:
            raise KeyError("accuracy")


def test_a_callback_that_fails_is_an_error_of_the_program(made: Made) -> None:
    worker = made(callbacks=[Fails()])
    worker.start(NewView(view(1, worker.peer)))
    failure = worker.hear(ProgramFailed)
    assert (failure.kind, failure.signature.split(" at ")[0]) == ("program", "KeyError")
    # its step counts as committed: others may have it
    assert (failure.step, failure.chunk) == (3, "epoch 1, task place 0, chunk 0")
    assert worker.end(Failed("no")) == Exit(1, "no")
    assert len(worker.adapter.done("apply")) == 3


@pytest.mark.parametrize(
    ("where", "error", "kind", "code"),
    [
        ("feed", BadData("the label is missing"), "bad-input", 2),
        ("feed", ValueError("no number"), "bad-input", 2),
        ("feed", MemoryError("too much"), "program", 1),
        ("feed", SystemExit(0), "program", 1),
        ("model", BadData("the label is missing"), "bad-input", 2),
        ("model", ValueError("no number"), "program", 1),
        ("model", SystemExit(0), "program", 1),
    ],
)
def test_what_user_code_raises_is_reported_with_its_chunk(
    made: Made, where: str, error: BaseException, kind: str, code: int
) -> None:
    def fails() -> None:
        raise error

    def convert(records: Sequence[float], mode: Any, metadata: Any) -> tuple[Any, Any]:
        if where == "feed" and 7 in records:
            fails()
        return feed(records, mode, metadata)

    worker = made(convert=convert)
    if where == "model":
        worker.adapter.moments["compute"] = lambda: fails() if worker.adapter.did[-1][3] == [6, 7] else None
    worker.start(NewView(view(1, worker.peer)))
    failure = worker.hear(ProgramFailed)
    assert (failure.kind, failure.chunk, failure.step) == (kind, "epoch 0, task place 0, chunk 1", 1)
    assert failure.signature.startswith(type(error).__name__)
    assert str(error) in failure.traceback
    assert worker.end(Failed("no")) == Exit(code, "no")
    assert len(worker.adapter.done("apply")) == 1


def test_a_worker_whose_program_has_failed_does_no_more(made: Made) -> None:
    worker = made(callbacks=[Fails()])
    worker.start(NewView(view(1, worker.peer)))
    worker.hear(ProgramFailed)
    done = list(worker.adapter.did)
    worker.tell(
        NewView(view(2, worker.peer, base=StateId(3, 1), at=after(3))), Pending(view(2, worker.peer).id)
    )
    assert worker.end(Acknowledged("failed")).code == 1
    assert worker.adapter.did == done
