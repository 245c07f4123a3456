"""Curves are kept from time to time and at the end, thinned until they fit; what can't be read is begun anew."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elasticdl.cluster.local.place import JobPlace
from elasticdl.master.reporting.curvekeeping import PERIOD, CurveKeeper
from elasticdl.master.reporting.statusstore import CURVES, FileStatusStore, ObjectStatusStore, StatusStore
from elasticdl.page.recording import Recording
from tests.page.jobs import Clock, status

from .shelf import Shelf


@dataclass
class Store:
    """Keeps curves in memory."""

    curves_limit: int = 1 << 20
    kept: list[str] = field(default_factory=list)

    def recall_curves(self) -> str:
        return self.kept[-1] if self.kept else ""

    def keep_curves(self, curves: str) -> None:
        self.kept.append(curves)


def recorded(store: Store, clock: Clock) -> tuple[Recording, CurveKeeper]:
    recording = Recording(0.0, clock)
    return recording, CurveKeeper(recording, store, clock)  # type: ignore[arg-type]


def test_curves_are_kept_from_time_to_time_and_at_the_end() -> None:
    clock, store = Clock(), Store()
    recording, keeping = recorded(store, clock)
    for step in range(1, 4):
        recording.progress(step, 0.5)
        keeping.status(status(step))
    assert store.kept == []
    clock.now += PERIOD
    keeping.status(status(3))
    keeping.status(status(3))
    assert len(store.kept) == 1
    recording.progress(4, 0.25)
    keeping.close()
    again, _ = recorded(store, clock)
    assert [step for _, step, _ in again.series_json()["series"]["loss"]] == [1, 2, 3, 4]


def test_they_are_thinned_until_they_fit() -> None:
    clock, store = Clock(), Store(curves_limit=3000)
    recording, keeping = recorded(store, clock)
    for step in range(1, 2000):
        clock.now += 1.0
        recording.progress(step, 1.0 / step)
    keeping.close()
    rows = json.loads(store.kept[-1])["curves"]["loss"]
    assert len(store.kept[-1]) <= 3000 or len(rows) <= 20
    assert (rows[0][2], rows[-1][1]) == (1.0, 1999)


def test_curves_that_can_not_be_read_are_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    recording, _ = recorded(Store(kept=["{"]), Clock())
    assert recording.series_json() == {"series": {}}
    assert "can't be read" in caplog.text


def test_a_local_job_s_are_a_file_of_its_owner(tmp_path: Path) -> None:
    store: StatusStore = FileStatusStore(JobPlace(tmp_path, tmp_path, 0.0, tmp_path))
    assert store.recall_curves() == ""
    store.keep_curves("first")
    store.keep_curves("second")
    assert store.recall_curves() == "second"
    assert (tmp_path / "curves.json").stat().st_mode & 0o777 == 0o600


def test_those_of_pods_are_beside_the_status() -> None:
    shelf, history = Shelf(), Shelf()
    store = ObjectStatusStore(shelf, history, lambda line: None, lambda event: None)
    assert store.recall_curves() == ""
    store.keep_curves("curves")
    store.conclude({"status": "finished"})
    assert shelf.texts[CURVES] == "curves"
    assert (
        ObjectStatusStore(shelf, history, lambda line: None, lambda event: None).recall_curves() == "curves"
    )
