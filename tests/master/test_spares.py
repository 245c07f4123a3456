"""When a job asks for a spare process."""

from __future__ import annotations

from collections.abc import Collection

from elasticdl.cluster.cluster import ProcessEnded, ProcessName, Role
from elasticdl.master.processes import replicas, spares
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.spares import FIRST_AFTER, NEXT_AFTER, Spare


class Script:
    """A job of two workers, and how often it has asked."""

    def __init__(self) -> None:
        self.workers = ReplicaSet(2, 0)
        self.spare = Spare()
        self.tell(0.0, replicas.Tick())

    def tell(self, now: float, *events: replicas.Event) -> None:
        for event in events:
            self.workers, _, _ = replicas.decide(now, self.workers, event)

    def asks(self, now: float, starting: Collection[str] = ()) -> bool:
        self.spare, wanted = spares.decide(now, self.spare, self.workers, starting)
        return wanted

    def lose(self, now: float, index: int, life: int = 1) -> None:
        name = ProcessName(Role.WORKER, index, life)
        self.tell(now, replicas.Joined(name), ProcessEnded(name, None, 9))


def test_the_first_spare_comes_when_all_have_taken_part_for_a_while() -> None:
    job = Script()
    assert not job.asks(50.0, {"worker-0-1", "worker-1-1"})
    assert not job.asks(60.0, {"worker-1-1"})
    assert [job.asks(now) for now in (70.0, 69.9 + FIRST_AFTER, 70.0 + FIRST_AFTER)] == [False, False, True]


def test_it_is_asked_for_once_as_long_as_nobody_is_missing() -> None:
    job = Script()
    assert [job.asks(now) for now in (0.0, 10.0, 20.0, 200.0)] == [False, True, False, False]


def test_after_a_loss_the_next_one_comes_soon_and_not_before_the_replacement_takes_part() -> None:
    job = Script()
    job.asks(0.0)
    job.lose(5.0, 1)
    assert not job.asks(100.0, {"worker-1-2"})
    assert [job.asks(now) for now in (101.0, 100.9 + NEXT_AFTER, 101.0 + NEXT_AFTER)] == [False, False, True]
    job.lose(110.0, 0)
    assert not job.asks(110.0, {"worker-0-2"})
    assert [job.asks(now) for now in (120.0, 120.0 + NEXT_AFTER)] == [False, True]


def test_a_worker_that_waits_for_its_next_life_is_missing() -> None:
    job = Script()
    job.asks(0.0)
    name = ProcessName(Role.WORKER, 1, 1)
    job.workers, _, _ = replicas.decide(5.0, job.workers, ProcessEnded(name, None, 9))  # before it has joined
    assert not job.workers.replicas[1].running
    assert not job.asks(5.0 + FIRST_AFTER)


def test_an_added_worker_is_waited_for() -> None:
    job = Script()
    job.asks(0.0)
    job.tell(5.0, replicas.Wanted(3))
    assert not job.asks(20.0, {"worker-2-1"})
    assert [job.asks(now) for now in (30.0, 30.0 + FIRST_AFTER)] == [False, True]


def test_a_job_that_ends_asks_for_none() -> None:
    for event in (replicas.Ending(stopping=True), replicas.Over()):
        job = Script()
        job.asks(0.0)
        job.tell(5.0, event)
        assert not job.asks(5.0 + FIRST_AFTER)
