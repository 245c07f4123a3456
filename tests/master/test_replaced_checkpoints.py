"""Checkpoints that a newer one replaces are gone when a job has ended, whether or not the thread that removes them has come to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticdl.checkpoint import layout
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.schedule import Position
from elasticdl.master.core.records import SavedRecord, SnapshotRecord
from elasticdl.master.running.allreduce import AllReduceStrategy
from elasticdl.master.running.context import Past
from elasticdl.master.running.ps import PsStrategy
from elasticdl.spec.edge import build, from_arguments

STATE = StateId(ViewId(1), 30)


def write(directory: Path, number: int) -> Path:
    folder = layout.folder_of(directory, number)
    folder.mkdir(parents=True)
    (folder / NAME).write_text("{}")
    return folder / NAME


@pytest.mark.parametrize("by", ["the master that saved", "another master"])
@pytest.mark.parametrize("kind", ["servers", "group"])
def test_they_are_removed_at_the_end_at_the_latest(
    tmp_path: Path, kind: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        f"elasticdl.master.running.{'ps' if kind == 'servers' else 'allreduce'}.in_background",
        lambda *_: None,
    )
    directory = tmp_path / "checkpoints"
    given = {
        "model_def": "m.model",
        "training_data": "data",
        "checkpoint_dir": directory,
        "keep_checkpoint_max": 1,
    }
    spec = build(from_arguments({**given, "num_ps_pods": 2} if kind == "servers" else given))
    manifests = [write(directory, number) for number in (1, 2, 3)]
    saved: SavedRecord | SnapshotRecord = SavedRecord(3, str(manifests[2]))
    if kind == "group":
        saved = SnapshotRecord(ViewId(1), STATE, Position(0, 0, 0, 0), str(manifests[2]), number=3)
    is_read = by == "another master"
    past = Past((saved,) if is_read else (), int(is_read), (), (), ())
    made = PsStrategy if kind == "servers" else AllReduceStrategy
    strategy: Any = made(spec, "job", directory, past)
    if is_read:
        strategy.begin()
    else:
        machine = SimpleNamespace(view=SimpleNamespace(snapshot=str(manifests[0])))
        strategy.after_append(cast(Any, machine), saved, cast(Any, None))
    assert layout.numbers(directory) == [1, 2, 3]
    strategy.drop_snapshots(directory, keeps_result=False)
    assert layout.numbers(directory) == [3]
