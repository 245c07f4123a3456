"""Which workers are asked to record steps, and what the client receives."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.profiling import (
    MOST_STEPS,
    Missing,
    Profiled,
    Recorded,
    RecordSteps,
    Refused,
    StepRecorded,
)
from elasticdl.control.transport.stream import ProfileWanted
from elasticdl.master.running.profiling import Profiling


def asked(said: list[Profiled | None], steps: int = 2, request: int = 5) -> ProfileWanted:
    return ProfileWanted(request, steps, said.append)


def step(number: int, request: int = 5) -> StepRecorded:
    return StepRecorded(request, number, 10, 5, ())


def connected() -> Profiling:
    """Two workers and a parameter server."""
    profiling = Profiling(trains=True)
    for connection, name in enumerate(("worker-0-1", "worker-1-1", "ps-0-1")):
        profiling.opened(connection, name)
    return profiling


def test_all_workers_are_asked_and_their_steps_passed_on_until_they_have_all() -> None:
    said: list[Profiled | None] = []
    profiling = connected()
    assert profiling.begin(asked(said)) == [(0, RecordSteps(5, 2)), (1, RecordSteps(5, 2))]
    for connection, number in ((0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)):
        profiling.heard(connection, step(number))
    assert said == [
        Recorded("worker-0-1", step(1)),
        Recorded("worker-1-1", step(1)),
        Recorded("worker-0-1", step(2)),
        Recorded("worker-1-1", step(2)),
        None,
    ]
    assert profiling.begin(asked(said, request=6))  # the next one may ask


def test_a_worker_that_dies_is_missed_and_the_others_are_awaited() -> None:
    said: list[Profiled | None] = []
    profiling = connected()
    profiling.begin(asked(said))
    profiling.heard(0, step(1))
    profiling.closed(0)
    profiling.opened(3, "worker-0-2")  # it was not asked
    profiling.heard(1, step(1))
    profiling.heard(1, step(2))
    assert said[1] == Missing("worker-0-1 has recorded 1 of 2 steps, then it ended")
    assert said[-1] is None
    assert said.count(None) == 1
    profiling.closed(1)
    profiling.closed(2)
    assert said.count(None) == 1


def test_the_end_of_the_job_is_the_end_of_what_is_awaited() -> None:
    said: list[Profiled | None] = []
    profiling = connected()
    profiling.end()
    profiling.begin(asked(said))
    profiling.end()
    assert said == [
        Missing("worker-0-1 has recorded 0 of 2 steps, then the job ended"),
        Missing("worker-1-1 has recorded 0 of 2 steps, then the job ended"),
        None,
    ]


def test_one_who_has_gone_is_told_nothing_and_hinders_nobody() -> None:
    gone: list[Profiled | None] = []
    said: list[Profiled | None] = []
    profiling = connected()
    profiling.begin(asked(gone))
    profiling.left(4)
    profiling.left(5)
    profiling.begin(asked(said, steps=1, request=6))
    profiling.heard(0, step(1))  # for the request before
    assert (gone, said) == ([], [])
    profiling.heard(0, step(2, 6))
    assert said == [Recorded("worker-0-1", step(2, 6))]


@pytest.mark.parametrize(
    ("profiling", "steps", "why"),
    [
        (connected(), 0, "--steps is between 1 and 1000; received 0"),
        (connected(), MOST_STEPS + 1, "--steps is between 1 and 1000; received 1001"),
        (Profiling(trains=False), 1, "only jobs that train have steps"),
        (Profiling(trains=True), 1, "no worker is connected"),
    ],
)
def test_what_is_refused(profiling: Profiling, steps: int, why: str) -> None:
    said: list[Profiled | None] = []
    assert profiling.begin(asked(said, steps)) == []
    refused, end = said
    assert isinstance(refused, Refused)
    assert why in refused.reason
    assert end is None


def test_a_second_request_is_refused_and_leaves_the_first_alone() -> None:
    first: list[Profiled | None] = []
    second: list[Profiled | None] = []
    profiling = connected()
    profiling.begin(asked(first))
    profiling.begin(asked(second, request=6))
    profiling.left(6)
    assert isinstance(second[0], Refused)
    assert "already" in second[0].reason
    profiling.heard(0, step(1))
    assert len(first) == 1
