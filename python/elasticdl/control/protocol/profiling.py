"""What is said while a few steps of a job are recorded, as plain values. Nothing here decides anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MOST_STEPS = 1000
"""What one request may ask of each worker."""


class Phase(NamedTuple):
    """What a worker's main thread did for a while.

    Attributes:
        name: of the phase, as `compute`.
        begin: nanoseconds since the Unix epoch.
        duration: nanoseconds.
    """

    name: str
    begin: int
    duration: int


@dataclass(frozen=True, slots=True)
class RecordSteps:
    """Master to worker: record the next so many steps, instead of what an earlier request asked for."""

    request: int
    steps: int


@dataclass(frozen=True, slots=True)
class StepRecorded:
    """Worker to master: a step has ended, and this is what it consisted of; times as in `Phase`.

    `step`: number of the step, with parameter servers of the minibatch's. `phases`: in the order of time, none overlaps another.
    """

    request: int
    step: int
    begin: int
    duration: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Master to client: a step of a worker, which is called by the name of its process."""

    worker: str
    step: StepRecorded


@dataclass(frozen=True, slots=True)
class Missing:
    """Master to client: a worker recorded less than was asked for, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Master to client: nothing is recorded, and why."""

    reason: str


Profiled = Recorded | Missing | Refused
