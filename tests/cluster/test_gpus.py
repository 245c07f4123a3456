"""Workers on one machine take turns with its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.cluster.local import gpus


@pytest.mark.parametrize(
    ("index", "named", "found", "expected"),
    [
        (0, None, 0, None),
        (3, None, 1, None),
        (0, None, 2, "0"),
        (3, None, 2, "1"),
        (0, "", 4, None),  # a person wants the CPU
        (5, "2", 4, None),
        (5, "2, GPU-8f", 4, "GPU-8f"),
        (4, "2,GPU-8f", 0, "2"),
    ],
)
def test_a_worker_sees_one_of_several(
    index: int, named: str | None, found: int, expected: str | None
) -> None:
    environment = {} if named is None else {gpus.VARIABLE: named}
    assert gpus.visible_to(index, environment, found) == expected


def test_the_driver_says_how_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path)
    assert gpus.count() == 2
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    assert gpus.count() == 0
