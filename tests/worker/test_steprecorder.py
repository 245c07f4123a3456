"""What is recorded of steps, and what it costs when nobody asks."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.profiling import Phase, RecordSteps, StepRecorded
from elasticdl.worker.steprecorder import MOST_PHASES, StepRecorder


class Clock:
    """A clock that the test sets, and that counts how often it is read."""

    def __init__(self) -> None:
        self.now = 1000
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now


class Rig:
    """A recorder whose wall clock is a million ahead."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.said: list[StepRecorded] = []
        self.wall = 1_000_000
        self.recorder = StepRecorder(self.said.append, self.clock, lambda: self.wall + self.clock.now)

    def phase(self, name: str | None, duration: int, idle: int = 0) -> None:
        began = self.recorder.begin()
        self.clock.now += duration
        self.recorder.end(name, began)
        self.clock.now += idle


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_recorded_and_no_clock_read_unless_asked(rig: Rig) -> None:
    for step in range(5):
        rig.phase("compute", 5)
        rig.recorder.end_step(step)
    assert (rig.said, rig.clock.reads) == ([], 0)


def test_whole_steps_are_recorded_from_the_end_of_the_one_under_way(rig: Rig) -> None:
    rig.phase("compute", 5)
    rig.recorder.ask(RecordSteps(7, 2))
    rig.phase("ring", 5)
    rig.recorder.end_step(1)
    assert rig.said == []
    for step in (2, 3, 4):
        rig.phase("read", 2, idle=3)
        rig.phase("compute", 5)
        rig.recorder.end_step(step)
    first, second = rig.said
    assert first == StepRecorded(
        7, 2, 1_001_010, 10, (Phase("read", 1_001_010, 2), Phase("compute", 1_001_015, 5))
    )
    assert (second.step, second.begin) == (3, 1_001_020)
    reads = rig.clock.reads
    rig.phase("compute", 5)
    assert rig.clock.reads == reads


def test_a_clock_that_is_set_makes_no_phases_overlap(rig: Rig) -> None:
    rig.recorder.ask(RecordSteps(1, 1))
    rig.recorder.end_step(0)
    rig.phase("read", 4)
    rig.wall = 0
    rig.phase("compute", 4)
    rig.recorder.end_step(1)
    (step,) = rig.said
    assert [phase.begin - step.begin for phase in step.phases] == [0, 4]


def test_looks_of_one_who_waits_are_one_phase_and_what_has_no_name_is_none(rig: Rig) -> None:
    rig.recorder.ask(RecordSteps(1, 1))
    rig.recorder.end_step(0)
    rig.phase("pull", 4, idle=1)
    rig.phase("pull", 4)
    rig.phase(None, 9)
    rig.recorder.end_step(1)
    assert [(phase.name, phase.duration) for phase in rig.said[0].phases] == [("pull", 9)]
    assert rig.said[0].duration == 18


def test_a_step_keeps_so_many_phases_at_most(rig: Rig) -> None:
    rig.recorder.ask(RecordSteps(1, 1))
    rig.recorder.end_step(0)
    for number in range(2 * MOST_PHASES):
        rig.phase(f"{number}", 1)
    rig.recorder.end_step(1)
    assert len(rig.said[0].phases) == MOST_PHASES
    assert rig.said[0].duration == 2 * MOST_PHASES


def test_a_later_request_takes_the_place_of_an_earlier_one(rig: Rig) -> None:
    rig.recorder.ask(RecordSteps(1, 100))
    rig.recorder.end_step(0)
    rig.recorder.ask(RecordSteps(2, 1))
    rig.recorder.ask(RecordSteps(3, 1))
    for step in range(1, 5):
        rig.recorder.end_step(step)
    assert [(said.request, said.step) for said in rig.said] == [(1, 1), (3, 2)]
