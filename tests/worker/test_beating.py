"""Heartbeats of a worker that waits for its data."""

from __future__ import annotations

from elasticdl.worker.beating import PatientHeart


class Heart:
    def __init__(self) -> None:
        self.said: list[tuple[int, int, int]] = []

    def set(self, view: int, step: int, progress: int) -> None:
        self.said.append((view, step, progress))


def test_signs_of_life_are_progress_that_stays_odd_or_even() -> None:
    heart = Heart()
    patient = PatientHeart(heart)
    patient.set(1, 2, 7)
    patient.alive()
    patient.alive()
    patient.set(1, 3, 8)
    assert heart.said == [(1, 2, 7), (1, 2, 9), (1, 2, 11), (1, 3, 12)]
