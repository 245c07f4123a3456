"""Leases: each task is computed until it is done, whoever goes; nothing counts that a roll-back has taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elasticdl.master.leases import HELD, WINDOW, Done, Lease, Leases, TaskNumber


def task(number: int) -> TaskNumber:
    return TaskNumber(number)


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), max_size=60))
def test_done_is_a_set(some: list[int], others: list[int]) -> None:
    def done(numbers: list[int]) -> Done:
        of = Done()
        for number in numbers:
            of = of.with_task(task(number))
        return of

    one, other = done(some), done(others)
    assert {number for number in range(50) if number in one} == set(some)
    assert one.count() == len(set(some))
    assert one.low not in one
    assert {number for number in range(50) if number in one.common(other)} == set(some) & set(others)


def test_tasks_go_in_the_order_of_the_ledger_and_two_to_each() -> None:
    leases = Leases(10)
    given_out = []
    for worker in ("a", "a", "b", "a"):
        leases, lease, why = leases.lease(worker)
        given_out.append((lease, why))
    assert given_out == [
        (Lease(task(0), 0, 0), ""),
        (Lease(task(1), 0, 0), ""),
        (Lease(task(2), 0, 0), ""),
        (None, f"a holds {HELD} tasks"),
    ]


def test_the_tasks_of_a_worker_that_is_gone_go_on_where_it_was() -> None:
    leases = Leases(10)
    for worker in ("a", "a", "b"):
        leases, _, _ = leases.lease(worker)
    leases = leases.progress("a", task(1), 5, 0).progress("a", task(1), 3, 0)
    leases = leases.progress("a", task(0), 2, roll_back=1)  # of a roll-back that has not been
    leases = leases.released("a")
    leases, first, _ = leases.lease("c")
    leases, second, _ = leases.lease("c")
    assert (first, second) == (Lease(task(0), 0, 0), Lease(task(1), 5, 0))
    assert set(leases.holders()) == {"b", "c"}


def test_a_task_that_is_late_holds_up_the_others() -> None:
    leases = Leases(5000)
    leases, slow, _ = leases.lease("slow")
    assert slow is not None
    for number in range(1, WINDOW + 1):
        leases, lease, _ = leases.lease("fast")
        assert lease is not None
        assert lease.task == number
        leases = leases.finished(lease.task)
    assert leases.lease("fast")[1:] == (None, f"task 0 is not done, and it is {WINDOW} tasks ago")
    leases = leases.finished(slow.task)
    assert leases.low == WINDOW + 1
    _, lease, _ = leases.lease("fast")
    assert lease is not None


def test_a_roll_back_leases_again_what_was_done_since_the_snapshot() -> None:
    leases = Leases(6)
    for worker in ("a", "b", "a", "b"):
        leases, _, _ = leases.lease(worker)
    position = leases.finished(task(1)).done
    for number in (0, 1, 2):
        leases = leases.finished(task(number))
    leases = leases.rolled_back(position)
    assert not leases.accepts(0)
    again = []
    for worker in "abcde":
        leases, lease, why = leases.lease(worker)
        again.append(lease.task if lease else why)
    assert again == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("number", "low", "above"), [(5, 4, (6, 8)), (3, 3, (6, 8)), (0, 0, (1, 2, 3, 6, 8)), (6, 4, (8,)), (8, 4, (6,))]
)  # fmt: skip
def test_a_task_is_taken_out_of_those_that_are_done(number: int, low: int, above: tuple[int, ...]) -> None:
    done = Done(task(4), (task(6), task(8)))
    assert done.without(task(number)) == Done(task(low), tuple(map(task, above)))


class Workers(RuleBasedStateMachine):
    """Workers that come, go, and report late; the tasks that are done only grow, but for roll-backs, and in the end all are."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(12)
        self.begun: set[tuple[int, int]] = set()
        self.snapshot = Done()

    @rule(worker=st.sampled_from("abc"))
    def ask(self, worker: str) -> None:
        self.leases, lease, why = self.leases.lease(worker)
        assert (lease is None) == bool(why)
        if lease is not None:
            assert lease.task not in self.leases.done
            self.begun.add((lease.task, lease.roll_back))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        if self.begun:
            number, roll_back = data.draw(st.sampled_from(sorted(self.begun)))
            if self.leases.accepts(roll_back):
                self.leases = self.leases.finished(task(number))

    @rule(worker=st.sampled_from("abc"))
    def go(self, worker: str) -> None:
        self.leases = self.leases.released(worker)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = self.leases.done

    @rule()
    def roll_back(self) -> None:
        self.leases = self.leases.rolled_back(self.snapshot)

    @rule()
    def restart(self) -> None:
        """A new master knows what is journalled."""
        self.leases = Leases(12, self.leases.done, self.leases.roll_back)

    @invariant()
    def nothing_is_held_twice_or_forgotten(self) -> None:
        leases = self.leases
        held = [lease.task for mine in leases.held.values() for lease in mine]
        assert len(held) == len(set(held))
        assert not set(held) & set(leases.returned)
        open_tasks = {number for number in range(12) if number not in leases.done}
        ahead = set(range(leases.following, 12))
        assert open_tasks <= set(held) | set(leases.returned) | ahead

    def teardown(self) -> None:
        for worker in "abc":
            self.leases = self.leases.released(worker)
        for _ in range(40):
            self.leases, lease, _ = self.leases.lease("a")
            if lease is None:
                break
            self.leases = self.leases.finished(lease.task)
        assert self.leases.is_over


TestWorkers = Workers.TestCase
