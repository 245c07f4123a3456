"""What is written beside its name until it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.files.output import made_beside


def write(path: Path, text: str) -> None:
    with made_beside(str(path), "made") as made:
        made.mkdir()
        (made / "variables.parquet").write_text(text)


def test_a_result_replaces_an_earlier_one(tmp_path: Path) -> None:
    for text in ("earlier", "new"):
        write(tmp_path / "m", text)
        assert (tmp_path / "m" / "variables.parquet").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_directory_of_other_things_stays(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "checkpoint-1").write_text("precious")
    with pytest.raises(FileExistsError, match=r"such as 'checkpoint-1'"):
        write(tmp_path / "m", "new")
    assert (tmp_path / "m" / "checkpoint-1").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
