"""Who evaluates which task, when one is done twice, and what counts."""

from __future__ import annotations

from elasticdl.control.protocol.messages import Evaluated, TaskKind, TaskLeased
from elasticdl.control.protocol.view import MemberId, StateId
from elasticdl.master.allreduce.gates import Gates
from elasticdl.master.core.evaluation import COPIES, LONG, Evaluation

STATE = StateId(7, 2)
A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def begun(tasks: int = 3) -> Evaluation:
    return Evaluation(STATE, tasks, 100.0)


def lease(now: float, evaluation: Evaluation, member: MemberId) -> tuple[Evaluation, int | None]:
    leased = evaluation.next_for(now, member, None)
    if leased is None:
        return evaluation, None
    return evaluation.with_lease(now, member, leased), leased.task


def test_each_member_gets_a_task_that_nobody_has() -> None:
    evaluation = begun()
    evaluation, first = lease(100.0, evaluation, A)
    evaluation, second = lease(100.0, evaluation, B)
    evaluation, third = lease(100.0, evaluation, C)
    assert (first, second, third) == (0, 1, 2)
    assert lease(100.0, evaluation, A)[1] is None
    assert evaluation.is_busy(A)


def deal(
    evaluation: Evaluation, *members: MemberId, sharing: int = 2, now: float = 100.0
) -> list[tuple[MemberId, int]]:
    return [(member, leased.task) for member, leased in evaluation.dealt(now, members, sharing, None)[1]]


def test_everybody_gets_a_first_task_before_anybody_gets_a_second_and_nobody_a_third() -> None:
    dealt, _ = begun(9).dealt(100.0, (A, B), 2, None)
    assert deal(begun(9), A, B) == [(A, 0), (B, 1), (A, 2), (B, 3)]
    assert deal(dealt, A, B) == []
    assert deal(dealt.with_result(101.0, B, 1, b""), A, B) == [(B, 4)]


def test_the_last_tasks_are_for_those_who_have_nothing() -> None:
    assert deal(begun(3), A) == [(A, 0), (A, 1)]
    assert deal(begun(3), A, sharing=3) == [(A, 0)]
    assert deal(begun(3), A, B) == [(A, 0), (B, 1)]
    assert deal(begun(1), A, B, sharing=1) == [(A, 0)]


def test_a_second_task_takes_as_long_as_it_is_done_not_as_it_is_held() -> None:
    evaluation, _ = begun(5).dealt(100.0, (A, B), 2, None)
    evaluation = evaluation.with_result(110.0, A, 0, b"").with_result(120.0, A, 2, b"")
    assert evaluation.took == (10.0, 10.0)
    assert deal(evaluation, A, now=120.0) == [(A, 4)]
    evaluation = evaluation.with_result(125.0, A, 4, b"")
    assert deal(evaluation, A, now=100.0 + LONG * 10.0) == [(A, 1)]


def test_both_tasks_of_a_member_that_is_gone_are_free_again() -> None:
    evaluation, _ = begun(4).dealt(100.0, (A, B), 1, None)
    evaluation = evaluation.with_result(101.0, B, 1, b"").with_result(102.0, B, 3, b"")
    assert deal(evaluation, B, now=102.0) == []
    assert deal(evaluation.free(A), B, sharing=1, now=102.0) == [(B, 0), (B, 2)]


def test_the_first_result_of_a_task_counts() -> None:
    evaluation = begun(1).with_result(101.0, A, 0, b"first").with_result(102.0, B, 0, b"second")
    assert evaluation.results == {0: b"first"}
    assert evaluation.is_whole


def test_a_task_whose_member_is_gone_is_free_again() -> None:
    evaluation, task = lease(100.0, begun(1), A)
    assert lease(101.0, evaluation, B)[1] is None
    assert lease(101.0, evaluation.free(A), B)[1] == task
    assert lease(101.0, evaluation.free_all(), B)[1] == task


def test_an_idle_member_gets_a_copy_of_what_lasts_long_and_not_sooner() -> None:
    evaluation, _ = lease(100.0, begun(2), A)
    evaluation, _ = lease(100.0, evaluation, B)
    evaluation = evaluation.with_result(102.0, A, 0, b"")  # a task takes 2 s
    assert lease(100.0 + LONG * 2.0 - 0.1, evaluation, A)[1] is None
    copied, task = lease(100.0 + LONG * 2.0, evaluation, A)
    assert task == 1
    assert COPIES == 2
    assert lease(200.0, copied, C)[1] is None, "two do it already"


def test_nobody_gets_a_copy_of_its_own_task() -> None:
    evaluation, _ = lease(100.0, begun(2), A)
    evaluation = evaluation.with_result(101.0, A, 0, b"")
    evaluation, task = lease(101.0, evaluation, A)
    assert task == 1
    assert lease(1000.0, evaluation, A)[1] is None


def test_one_member_makes_metrics_of_all_results_and_the_first_ones_count() -> None:
    evaluation = begun(1).with_result(101.0, A, 0, b"x")
    leased = evaluation.next_for(101.0, B, b"sum")
    assert leased == TaskLeased(TaskKind.METRICS, STATE, 0, b"sum")
    evaluation = evaluation.with_lease(101.0, B, leased)
    assert evaluation.next_for(101.0, A, b"sum") is None
    first, second = Evaluated(STATE, (("loss", 1.0),)), Evaluated(STATE, (("loss", 1.5),))
    evaluation = evaluation.with_metrics(first).with_metrics(second)
    assert evaluation.evaluated == first
    assert evaluation.free(B).next_for(200.0, A, b"sum") is None


def test_metrics_of_some_results_only_count_for_nothing() -> None:
    assert begun(2).with_metrics(Evaluated(STATE, ())).evaluated is None


def test_who_evaluates_is_at_the_gate_of_the_state_that_is_evaluated() -> None:
    at = {A: STATE, B: StateId(6, 2)}
    assert Gates(at, begun()).evaluates(A)
    assert not Gates(at, begun()).evaluates(B), "it comes later"
    assert not Gates(at, begun()).evaluates(C)
    assert not Gates(at).evaluates(A), "all is known already"
