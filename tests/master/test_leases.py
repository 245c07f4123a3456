"""Leases: each task is computed until it is done, whichever workers leave; nothing counts that a roll-back has taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import Waves
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.ps.leases import HELD, WINDOW, Lease, Leases


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
    assert leases.roll_back == 1
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
            if roll_back == self.leases.roll_back:
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


# ------------------------------------------------------------------ gradients that are summed up


def in_waves(size: int, tasks: int = 10, epochs: int = 1) -> Leases:
    """Return the leases of epochs of so many tasks, in waves of a size."""
    order = TaskOrder(Ledger((Shard("data", 0, 8 * tasks),), 8, 4, 1, False), epochs, 0, size)
    return Leases(order.total, waves=Waves(order))


def held(leases: Leases) -> dict[str, list[int]]:
    return {worker: [lease.task for lease in mine] for worker, mine in sorted(leases.held.items())}


def finished(leases: Leases, *tasks: int) -> Leases:
    for number in tasks:
        leases = leases.finished(task(number))
    return leases


def test_without_waves_each_worker_has_two_tasks() -> None:
    assert held(Leases(10).dealt(("a", "b"))) == {"a": [0, 1], "b": [2, 3]}
    leases = Leases(3).dealt(("a", "b"))
    assert held(leases) == {"a": [0, 1], "b": [2]}
    assert leases.dealt(("a", "b")) is leases


def test_a_wave_is_dealt_out_evenly_and_the_next_as_far_as_there_is_room() -> None:
    leases = in_waves(4).dealt(("a", "b", "c"))
    assert held(leases) == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}
    assert leases.dealt(("a", "b", "c")) is leases
    leases = finished(leases, 0).dealt(("a", "b", "c"))
    assert held(leases) == {"a": [3, 6], "b": [1, 4], "c": [2, 5]}


def test_nobody_goes_further_than_the_next_wave() -> None:
    leases = in_waves(2).dealt(tuple("abcdef"))
    assert held(leases) == {"a": [0], "b": [1], "c": [2], "d": [3]}
    leases = finished(leases, 1).dealt(tuple("abcdef"))
    assert held(leases) == {"a": [0], "c": [2], "d": [3]}
    assert held(finished(leases, 0).dealt(tuple("abcdef"))) == {"a": [4], "b": [5], "c": [2], "d": [3]}


def test_the_last_survivor_has_all_tasks_of_the_wave() -> None:
    leases = in_waves(4).dealt(("a", "b", "c"))
    leases = leases.progress("c", task(2), 1, 0).released("c").released("b").dealt(("a",))
    assert held(leases) == {"a": [0, 3, 1, 2]}
    assert leases.begun()[task(2)] == 1
    assert leases.dealt(("a",)) is leases


def test_what_a_lost_worker_had_goes_to_whoever_has_least_of_that_wave() -> None:
    leases = in_waves(5).dealt(("a", "b", "c"))
    assert held(leases) == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}
    assert held(leases.released("a").dealt(("b", "c"))) == {"b": [1, 4, 3], "c": [2, 5, 0]}


def test_who_joins_takes_over_what_is_least_far() -> None:
    leases = in_waves(4).dealt(("a",))
    assert [lease.task for lease in leases.held["a"]] == [0, 1, 2, 3]
    leases = leases.progress("a", task(3), 1, 0)
    leases = leases.dealt(("a", "b"))
    assert [lease.task for lease in leases.held["a"]] == [0, 3]
    assert [lease.task for lease in leases.held["b"]] == [2, 1]
    leases = leases.dealt(("a", "b", "c"))
    loads = [sum(lease.task < 4 for lease in leases.held[worker]) for worker in "abc"]
    assert sorted(loads) == [1, 1, 2]
    assert leases.dealt(("a", "b", "c")) is leases


def test_no_wave_is_begun_while_slots_are_to_be_cut() -> None:
    leases = in_waves(4)
    assert leases.is_between_waves
    assert leases.dealt(("a",), holds_back=True) is leases
    leases = leases.dealt(("a", "b", "c"))
    assert not leases.is_between_waves
    leases = finished(leases, 0, 1, 2, 3)
    # Two tasks of the next wave are begun: so it comes to its end first.
    leases = leases.dealt(("a", "b", "c"), holds_back=True)
    assert held(leases) == {"a": [6, 7], "b": [4], "c": [5]}
    leases = finished(leases, 4, 5, 6)
    assert not leases.is_between_waves
    leases = finished(leases, 7)
    assert leases.is_between_waves
    assert leases.dealt(("a", "b", "c"), holds_back=True) is leases
    assert held(leases.dealt(("a", "b", "c"))) == {"a": [8], "b": [9]}


def test_a_roll_back_goes_to_the_beginning_of_a_wave() -> None:
    leases = finished(in_waves(4).dealt(("a", "b")), 0, 1, 2, 3).dealt(("a", "b"))
    leases = finished(leases, 5).rolled_back(Done(task(4)))
    assert leases.is_between_waves
    assert held(leases.dealt(("a", "b"))) == {"a": [4, 6], "b": [5, 7]}


class WorkersInWaves(RuleBasedStateMachine):
    """Workers that come and go, snapshots, roll-backs and masters: those that are left have all that a step waits for, and it ends."""

    size, tasks, epochs = 4, 6, 3

    def __init__(self) -> None:
        super().__init__()
        self.leases = in_waves(self.size, self.tasks, self.epochs)
        self.snapshot = Done()

    @property
    def waves(self) -> Waves:
        waves = self.leases.waves
        assert waves is not None
        return waves

    def first(self) -> range:
        """Return the wave whose steps are made."""
        return range(0) if self.leases.is_over else self.waves.tasks(self.leases.low)

    def computable(self) -> list[int]:
        """Return the tasks that workers can finish: rows of the next wave's first step are not there before."""
        held = {lease.task for mine in self.leases.held.values() for lease in mine}
        wave = self.first()
        # A step needs a gradient of each task.
        is_whole = all(number in held or number in self.leases.done for number in wave)
        return sorted(held.intersection(wave)) if is_whole else []

    @rule(workers=st.sets(st.sampled_from("abc"), min_size=1), holds_back=st.booleans())
    def deal(self, workers: set[str], holds_back: bool) -> None:
        self.leases = self.leases.dealt(sorted(workers), holds_back=holds_back)
        wave = self.first()
        begun = {lease.task for mine in self.leases.held.values() for lease in mine}
        if not holds_back:
            assert all(number in begun or number in self.leases.done for number in wave)

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        if tasks := self.computable():
            self.leases = self.leases.finished(task(data.draw(st.sampled_from(tasks))))

    @rule(worker=st.sampled_from("abc"), chunk=st.integers(0, 1))
    def go(self, worker: str, chunk: int) -> None:
        for lease in self.leases.held.get(worker, ()):
            self.leases = self.leases.progress(worker, lease.task, chunk, self.leases.roll_back)
        self.leases = self.leases.released(worker)

    @rule()
    def take_snapshot(self) -> None:
        if self.leases.is_between_waves:
            assert not self.leases.done.above
            assert self.leases.is_over or self.first().start == self.leases.low
            self.snapshot = self.leases.done

    @rule()
    def roll_back(self) -> None:
        self.leases = self.leases.rolled_back(self.snapshot)
        assert self.leases.is_between_waves

    @rule(workers=st.sets(st.sampled_from("abc")))
    def restart(self, workers: set[str]) -> None:
        """A new master knows what is journalled, and what those who are there say."""
        before = self.leases
        self.leases = Leases(before.total, before.done, before.roll_back, waves=before.waves)
        for worker in workers:
            mine = {lease.task: lease.chunk for lease in before.held.get(worker, ())}
            self.leases = self.leases.taken_up(worker, mine)

    @invariant()
    def nobody_is_far_ahead(self) -> None:
        leases, wave = self.leases, self.first()
        after = range(0) if leases.is_over or wave.stop == leases.total else self.waves.tasks(wave.stop)
        assert set(leases.begun()) <= {*wave, *after}
        assert set(leases.done.above) <= set(wave)
        for mine in leases.held.values():
            assert sum(lease.task in after for lease in mine) <= HELD

    def teardown(self) -> None:
        for worker in "bc":
            self.leases = self.leases.released(worker)
        for _ in range(3 * self.tasks):  # what is begun comes to its end
            self.leases = self.leases.dealt(("a",), holds_back=True)
            if self.leases.is_between_waves:
                break
            self.report_all()
        assert self.leases.is_between_waves
        for _ in range(3 * self.tasks):
            self.leases = self.leases.dealt(("a",))
            self.report_all()
        assert self.leases.is_over

    def report_all(self) -> None:
        for number in self.computable():
            self.leases = self.leases.finished(task(number))


TestWorkersInWaves = WorkersInWaves.TestCase
