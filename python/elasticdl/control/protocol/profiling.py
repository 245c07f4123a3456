"""What is said while a few steps of a job are recorded, as plain values. Nothing here decides anything."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

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


class RecordSteps(Struct, frozen=True):
    """Master to worker: record the next so many steps, instead of what an earlier request asked for."""

    request: int
    steps: int


class StepRecorded(Struct, frozen=True):
    """Worker to master: a step has ended, and this is what it consisted of; times as in `Phase`.

    `step`: number of the step, with parameter servers of the minibatch's. `phases`: in the order of time, none overlaps another.
    """

    request: int
    step: int
    begin: int
    duration: int
    phases: tuple[Phase, ...]


class Recorded(Struct, frozen=True):
    """Master to client: a step of a worker, which is called by the name of its process."""

    worker: str
    step: StepRecorded


class Missing(Struct, frozen=True):
    """Master to client: a worker recorded less than was asked for, and why."""

    text: str


class Refused(Struct, frozen=True):
    """Master to client: nothing is recorded, and why."""

    reason: str


Profiled = Recorded | Missing | Refused
