"""Barriers of jobs with parameter servers: what is leased up to one, who evaluates it, and what counts (B1 to B3)."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.messages import (
    Acknowledged,
    Barrier,
    Evaluated,
    GateOpen,
    MetricValues,
    TaskKind,
    TaskLeased,
    TaskResult,
)
from elasticdl.control.protocol.psmessages import (
    BarrierPassed,
    FoundMetrics,
    Holding,
    Leased,
    Leave,
    Placed,
    TaskDone,
    WriteResult,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.master.core import events
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.records import (
    ErrorRecord,
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    StoppingRecord,
    read_journal,
)
from tests.master.psrig import EVALUATION, Rig, accounts_of, leased, result

VALUES = (("val_loss", 0.5),)
FIRST, SECOND = "worker-0-1", "worker-1-1"


def state(step: int, roll_back: int = 0) -> StateId:
    return StateId(step, ViewId(roll_back))


def at_barrier(*workers: str, **settings: object) -> Rig:
    """Bring a job to its first barrier, at task 3."""
    rig = Rig(evaluation=EVALUATION, **settings)  # type: ignore[arg-type]
    rig.start(*workers)
    for worker in workers:
        rig.say(worker, FoundMetrics("metrics"))
    train(rig, *workers)
    return rig


def train(rig: Rig, *workers: str) -> list[int]:
    """Let workers do all that they are leased; return it."""
    done = []
    for _ in range(5):
        for worker in workers:
            for lease in rig.heard(worker, Leased):
                done.append(lease.task)
                rig.say(worker, TaskDone(lease.task, lease.roll_back))
    return sorted(done)


def evaluate(rig: Rig, *workers: str, values: MetricValues = VALUES) -> list[tuple[TaskKind, StateId, int]]:
    """Let workers evaluate all that they are leased; return it."""
    done = []
    for _ in range(5):
        for worker in workers:
            for lease in rig.heard(worker, TaskLeased):
                done.append((lease.kind, lease.state, lease.task))
                if lease.kind == TaskKind.METRICS:
                    assert lease.body == b"task 0task 1"
                    rig.say(worker, Evaluated(lease.state, values))
                else:
                    rig.say(worker, TaskResult(lease.state, lease.task, b"task %d" % lease.task))
    return done


def opened(step: int, epoch: int = 0, ended: bool = False, in_roll_back: int = 0, of: int = 0) -> GateOpen:
    return GateOpen(state(step, of), VALUES, Barrier(in_roll_back, epoch, ended))


def evaluated(rig: Rig) -> list[tuple[StateId, int]]:
    return [(one.state, one.task) for one in rig.journal if isinstance(one, EvaluatedRecord)]


def test_no_task_beyond_a_barrier_is_leased_before_its_metrics_are_journalled() -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.start(FIRST)
    rig.say(FIRST, FoundMetrics("metrics"))
    assert train(rig, FIRST) == [0, 1, 2]
    assert evaluated(rig) == []
    one, metrics = TaskKind.EVALUATE, TaskKind.METRICS
    assert evaluate(rig, FIRST) == [(one, state(6), 0), (one, state(6), 1), (metrics, state(6), 0)]
    assert evaluated(rig) == [(state(6), 3)]
    assert rig.heard(FIRST, GateOpen) == [opened(6)]
    (said,) = rig.announced(EventKind.EVALUATED)
    assert said.text == "evaluation of step 6: val_loss 0.5"
    assert train(rig, FIRST) == [3, 4]
    assert evaluate(rig, FIRST)
    assert train(rig, FIRST) == [5, 6, 7]


def test_the_barrier_opens_before_the_tasks_behind_it_come() -> None:
    rig = at_barrier(FIRST)
    evaluate(rig, FIRST)
    kinds = [type(message) for name, message in rig.told if name == FIRST]
    assert kinds.index(GateOpen) < kinds.index(Leased)


def test_an_evaluation_is_leased_behind_the_placement_and_to_all_workers() -> None:
    rig = at_barrier(FIRST, SECOND)
    for worker in (FIRST, SECOND):
        kinds = [type(message) for name, message in rig.told if name == worker]
        assert kinds.index(Placed) < kinds.index(TaskLeased)
    first, second = rig.heard(FIRST, TaskLeased), rig.heard(SECOND, TaskLeased)
    assert {one.task for one in (*first, *second)} == {0, 1}


def test_the_end_is_a_barrier_too_and_the_result_has_its_metrics() -> None:
    rig = at_barrier(FIRST)
    for _ in range(4):
        evaluate(rig, FIRST)
        assert rig.heard(FIRST, WriteResult) == [] or len(evaluated(rig)) == 4
        train(rig, FIRST)
    assert evaluated(rig) == [(state(6), 3), (state(10), 5), (state(16), 8), (state(20), 10)]
    rig.say(FIRST, result(20, 1))
    for server in range(2):
        rig.say(f"ps-{server}-1", accounts_of(rig, server))
    (end,) = [one for one in rig.journal if isinstance(one, FinishedRecord)]
    assert end.metrics == VALUES


@pytest.mark.parametrize("how", ["dies", "leaves", "connects again"])
def test_what_a_lost_worker_evaluated_is_done_by_another(how: str) -> None:
    rig = at_barrier(FIRST, SECOND)
    (lost,) = rig.heard(SECOND, TaskLeased)
    (mine,) = rig.heard(FIRST, TaskLeased)
    rig.tick(1.0)  # what takes long is done twice
    rig.say(FIRST, TaskResult(mine.state, mine.task, b"task %d" % mine.task))
    assert rig.heard(FIRST, TaskLeased) == []
    if how == "dies":
        rig.die(SECOND)
    elif how == "leaves":
        rig.say(SECOND, Leave((), 0))
    else:
        rig.connect(SECOND)
        rig.say(SECOND, FoundMetrics("metrics"))
    found = rig.heard(FIRST, TaskLeased) or rig.heard(SECOND, TaskLeased)
    assert [one.task for one in found] == [lost.task]


def test_another_master_takes_results_that_are_said_again_and_goes_on_behind_barriers_that_are_passed() -> (
    None
):
    rig = at_barrier(FIRST)
    evaluate(rig, FIRST)
    assert train(rig, FIRST) == [3, 4]
    rig.begin()
    for server in range(2):
        rig.connect(f"ps-{server}-1", server=server)
    rig.connect(FIRST)
    rig.say(FIRST, FoundMetrics("metrics"))
    for task in range(2):
        rig.say(FIRST, TaskResult(state(10), task, b"task %d" % task))
    assert rig.heard(FIRST, GateOpen) == [opened(6)]
    rig.tick(2.0)
    assert [kind for kind, _, _ in evaluate(rig, FIRST)][-1] == TaskKind.METRICS
    assert train(rig, FIRST) == [5, 6, 7]


def test_results_of_another_barrier_or_roll_back_count_for_nothing() -> None:
    rig = at_barrier(FIRST)
    evaluate(rig, FIRST)
    train(rig, FIRST)
    rig.say(FIRST, TaskResult(state(6), 1, b"late"))
    rig.say(FIRST, Evaluated(state(6), (("val_loss", 9.0),)))
    assert rig.refused == []
    evaluate(rig, FIRST)
    assert evaluated(rig) == [(state(6), 3), (state(10), 5)]


def test_a_roll_back_forgets_the_evaluations_beyond_it() -> None:
    rig = at_barrier(FIRST, servers=1, replicas=1)
    evaluate(rig, FIRST)
    assert train(rig, FIRST) == [3, 4]
    rig.heard(FIRST, TaskLeased)
    rig.die("ps-0-1")
    rig.connect("ps-0-2")
    rig.tick()
    assert rig.master.journal.roll_back == 1
    assert rig.master.journal.evaluated == {}
    rig.say(FIRST, TaskResult(state(10), 0, b"of before"))
    assert rig.refused == []
    assert train(rig, FIRST) == [0, 1, 2]
    assert evaluate(rig, FIRST)
    assert evaluated(rig) == [(state(6), 3), (state(6, 1), 3)]


def test_a_stopped_job_ends_without_an_evaluation() -> None:
    rig = at_barrier(FIRST)
    rig.event(events.StopAsked(1, "asked"))
    for task in range(2):
        rig.say(FIRST, TaskResult(state(6), task, b""))
    rig.say(FIRST, Evaluated(state(6), VALUES))
    rig.tick(1.0)
    assert evaluated(rig) == []
    assert [one.steps for one in rig.heard(FIRST, WriteResult)] == [6]


def test_with_waves_a_barrier_is_the_first_wave_at_or_after_each_so_many_steps() -> None:
    rig = at_barrier(FIRST, wave=4)
    assert leased(rig, FIRST) == []
    assert rig.master.work.at_barrier(rig.master.journal) is None or evaluated(rig) == []
    evaluate(rig, FIRST)
    train(rig, FIRST)
    evaluate(rig, FIRST)
    assert evaluated(rig) == [(state(6), TaskNumber(10))]


def test_of_many_evaluations_the_last_are_kept_and_those_that_may_be_the_best() -> None:
    from elasticdl.master.core.records import MOST_BARRIERS, compact

    def values(task: int) -> MetricValues:
        loss = {3: 0.1, 4: 0.1, 7: float("nan"), 9: 0.9}.get(task, 0.5)
        return (("val_loss", loss), ("val_auc", 0.7 if task == 5 else 0.6))

    count = MOST_BARRIERS + 10
    records = [
        EvaluatedRecord(state(task), values(task), 1.0, TaskNumber(task)) for task in range(1, count + 1)
    ]
    journal = read_journal(records)
    # val_auc is nowhere lower than at first, as far as is known
    kept = [1, 3, 5, 9, *range(11, count + 1)]
    assert [record.task for record in journal.evaluated.values()] == kept
    again = read_journal(compact(records)).evaluated
    assert list(again) == list(journal.evaluated)
    assert read_journal(compact(compact(records))).evaluated.keys() == again.keys()


# ---------------------------------------------------------------------- callbacks


def following(*workers: str, **settings: object) -> Rig:
    """Bring a job whose callbacks follow epochs to its first barrier, at task 3, and evaluate there."""
    rig = Rig(evaluation=EVALUATION, follows=True, **settings)  # type: ignore[arg-type]
    rig.start(*workers)
    for worker in workers:
        rig.say(worker, FoundMetrics("metrics"))
    assert train(rig, *workers) == [0, 1, 2]
    evaluate(rig, *workers)
    return rig


def test_no_task_beyond_a_barrier_is_leased_before_callbacks_have_passed_it() -> None:
    rig = following(FIRST, SECOND)
    assert evaluated(rig) == [(state(6), 3)]
    assert rig.heard(FIRST, GateOpen) == rig.heard(SECOND, GateOpen) == [opened(6)]
    rig.tick(1.0)
    assert train(rig, FIRST, SECOND) == []
    assert evaluate(rig, FIRST) == []
    rig.say(SECOND, BarrierPassed(state(6), ""))
    assert train(rig, FIRST, SECOND) == [3, 4]
    rig.say(FIRST, BarrierPassed(state(6), ""))
    evaluate(rig, FIRST)
    rig.say(FIRST, BarrierPassed(state(6), ""))  # said once more, and not of the last barrier
    assert train(rig, FIRST, SECOND) == []


def test_callbacks_that_ask_for_the_end_end_the_job_at_their_barrier() -> None:
    rig = following(FIRST, SECOND)
    rig.say(FIRST, BarrierPassed(state(6), "Patience asked for the end of training after step 6"))
    rig.say(SECOND, BarrierPassed(state(6), "Patience asked for the end of training after step 6"))
    assert not any(isinstance(one, StoppingRecord) for one in rig.journal)  # every worker repeats it
    assert train(rig, FIRST, SECOND) == []
    assert [one.steps for one in rig.heard(FIRST, WriteResult)] == [6]


def test_a_later_master_waits_for_callbacks_again_and_a_stop_that_it_hears_ends_the_job() -> None:
    rig = following(FIRST)
    rig.begin()
    for server in range(2):
        rig.connect(f"ps-{server}-1", server=server)
    rig.connect(FIRST)
    rig.tick(2.0)
    assert train(rig, FIRST) == []
    rig.say(FIRST, BarrierPassed(state(6), "enough"))
    rig.tick(1.0)
    assert [one.steps for one in rig.heard(FIRST, WriteResult)] == [6]


def test_a_worker_may_hold_tasks_beyond_a_barrier_that_a_later_master_does_not_know_to_be_passed() -> None:
    rig = following(FIRST)
    rig.say(FIRST, BarrierPassed(state(6), ""))
    (held, _) = rig.heard(FIRST, Leased)
    rig.begin()
    for server in range(2):
        rig.connect(f"ps-{server}-1", server=server)
    rig.connect(FIRST, holds=(Holding(held.task, 1),))
    rig.say(FIRST, BarrierPassed(state(6), ""))
    rig.tick(2.0)
    rig.say(FIRST, TaskDone(held.task, 0))
    assert rig.refused == []
    assert train(rig, FIRST) == [4]


def test_after_a_roll_back_barriers_are_told_anew_and_passed_anew() -> None:
    rig = following(FIRST, servers=1, replicas=1)
    rig.say(FIRST, BarrierPassed(state(6), ""))
    rig.heard(FIRST, GateOpen)
    assert [one.task for one in rig.heard(FIRST, Leased)] == [3, 4]
    rig.die("ps-0-1")
    rig.connect("ps-0-2")
    rig.tick()
    assert train(rig, FIRST) == [0, 1, 2]
    evaluate(rig, FIRST)
    assert rig.heard(FIRST, GateOpen) == [opened(6, of=1, in_roll_back=1)]
    rig.say(FIRST, BarrierPassed(state(6), "what was so before the roll-back"))
    assert train(rig, FIRST) == []
    rig.say(FIRST, BarrierPassed(state(6, 1), ""))
    assert train(rig, FIRST) == [3, 4]


def test_the_ends_of_epochs_are_barriers_for_callbacks_where_nothing_is_evaluated() -> None:
    rig = Rig(follows=True, epochs=2)
    rig.start(FIRST)
    assert train(rig, FIRST) == list(range(10))
    assert evaluated(rig) == [(state(20), 10)]
    assert rig.announced(EventKind.EVALUATED) == []
    assert rig.heard(FIRST, GateOpen) == [GateOpen(state(20), None, Barrier(0, 0, True))]
    assert rig.heard(FIRST, TaskLeased) == []
    rig.say(FIRST, BarrierPassed(state(20), ""))
    assert train(rig, FIRST) == list(range(10, 20))
    assert rig.heard(FIRST, GateOpen) == [GateOpen(state(40), None, Barrier(0, 1, True))]
    assert rig.heard(FIRST, WriteResult) == []
    rig.say(FIRST, BarrierPassed(state(40), ""))
    assert [one.steps for one in rig.heard(FIRST, WriteResult)] == [40]


def test_a_barrier_that_is_none_is_passed_by_nobody() -> None:
    rig = following(FIRST)
    rig.say(FIRST, BarrierPassed(state(7), ""))
    assert rig.refused


def test_a_worker_whose_callbacks_are_not_those_of_the_others_fails_with_the_reason() -> None:
    """Otherwise the job would wait at its next barrier for a word that nobody else has to say."""
    rig = Rig(evaluation=EVALUATION)
    rig.start(FIRST)
    rig.say(FIRST, FoundMetrics("metrics"))
    begun, other = rig.heard(FIRST, Leased)
    rig.say(FIRST, TaskDone(begun.task, 0))
    rig.follows = True
    rig.connect(SECOND)
    (record,) = (one for one in rig.journal if isinstance(one, ErrorRecord))
    assert record.worker == SECOND
    assert rig.heard(SECOND, Acknowledged) == [Acknowledged("failed")]
    assert rig.heard(SECOND, Leased) == []
    rig.die(SECOND)
    rig.say(FIRST, TaskDone(other.task, 0))
    assert train(rig, FIRST) == [2]
    evaluate(rig, FIRST)
    assert 3 in train(rig, FIRST), "beyond the barrier without a word of callbacks"
    rig.follows = False
    rig.connect("worker-1-2")
    rig.follows = True
    rig.connect("worker-1-3")
    (failed,) = (one for one in rig.journal if isinstance(one, FailedRecord))
    assert failed.reason.startswith(
        "worker-1-3 failed with the error that worker-1-1 had before: its callbacks follow"
    )
    assert "and those of worker-0-1 do not; callbacks() must return the same in all workers" in failed.reason


def test_before_the_first_step_callbacks_that_differ_end_the_job() -> None:
    rig = Rig(evaluation=EVALUATION, follows=True)
    rig.start(FIRST)
    rig.follows = False
    rig.connect(SECOND)
    (failed,) = (one for one in rig.journal if isinstance(one, FailedRecord))
    assert failed.worker == SECOND
    assert "its callbacks do not follow epochs or evaluations, and those of worker-0-1 do;" in failed.reason


def test_a_worker_that_says_something_else_of_its_callbacks_than_before_is_refused() -> None:
    rig = following(FIRST, SECOND)
    rig.disconnect(SECOND)
    rig.follows = False
    rig.connect(SECOND)
    assert rig.refused == [
        (
            SECOND,
            "worker-1-1 says Enroll, which can't be: its callbacks did follow epochs or evaluations before, and do not now",
        )
    ]
    rig.say(FIRST, BarrierPassed(state(6), ""))
    assert train(rig, FIRST) == [3, 4]
