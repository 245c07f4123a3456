"""What a simulated program and its faults are, beside those of every job."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.plan import Plan


@dataclass(frozen=True)
class ProgramPlan(Plan):
    """One job of programs."""

    stop_step: int = 0
    """After this step every program calls `job.stop`; 0: none does."""
    program_stops: int = 0
    """Programs that call `job.stop` where the others do not, in the middle of a batch or after it."""
    leaves: int = 0
    """Programs that leave their loop before it ends."""
    deviations: int = 0
    """Programs that do something else after a step than the others."""
