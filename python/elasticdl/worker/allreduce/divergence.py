"""How members find out that their states are no longer equal: a few sums that the ring carries beside the gradient.

Members with a model file do the same by construction; programs with loops of their own do what they like after a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.worker.events import ProgramError


def spread(members: int, fingerprint: int) -> list[float]:
    """Return what is added up of a fingerprint below 2²⁰: the number of those, their sum, and the sum of their squares."""
    return [float(members), float(members * fingerprint), float(members * fingerprint**2)]


def is_one(sums: Sequence[float]) -> bool:
    """Tell from such sums whether all fingerprints are equal. Floats are exact for up to 8,192 members."""
    members, first, second = (int(one) for one in sums)
    return members * second == first**2


def diverged(step: int) -> ProgramError:
    """Return what is said of a step whose members have other states."""
    text = (
        f"the workers' programs are no longer in the same state before step {step}. All must do the same after each step: decide nothing "
        "by what only one knows (the loss of its own batch, time, unseeded random numbers), keep what changes in job.state, and let only "
        "job.print and files depend on job.is_writer"
    )
    return ProgramError("program", f"diverged before step {step}", "", text)
