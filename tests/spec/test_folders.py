"""Data in directories of directories: the message names a glob, and the glob finds just these files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticdl.data.readers.files import find_files
from elasticdl.errors import BadData
from elasticdl.spec.edge import build, check_paths, from_arguments


def refusal(origin: Path) -> str:
    """Return what both the command and a job's master say of a place."""
    settings = {"model_def": "a.b", "training_data": str(origin), "model_zoo": str(origin.parent)}
    spec = build(from_arguments(settings))
    with pytest.raises(BadData) as at_the_edge:
        check_paths(spec, custom_reader=False)
    with pytest.raises(BadData) as in_the_master:
        find_files(str(origin))
    advice = str(in_the_master.value).partition(": ")[2]
    assert str(at_the_edge.value).endswith(advice)
    return advice


def suggested(origin: Path) -> list[str]:
    """Return the files that the glob of the message finds."""
    pattern = re.search(r"give the glob '(.*)' in quotes", refusal(origin))
    assert pattern is not None
    return [str(path.relative_to(origin.parent)) for path in find_files(pattern[1])]


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["2025/a.csv", "2026/b.csv"], ["2025/a.csv", "2026/b.csv"]),
        (["x/1/a.tfrecord", "y/2/b.tfrecord"], ["x/1/a.tfrecord", "y/2/b.tfrecord"]),
        (["x/a.csv", "x/deeper/b.csv"], ["x/a.csv", "x/deeper/b.csv"]),
        (["x/part-0", "y/part-0"], ["x/part-0", "y/part-0"]),
        (["x/a.csv", "x/b.csv", "x/notes.md", "x/_SUCCESS", "x/a.csv.records-index"], ["x/a.csv", "x/b.csv"]),
        (["_SUCCESS", ".hidden", "x/a.csv"], ["x/a.csv"]),
    ],
)
def test_the_glob_finds_the_files(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    root = tmp_path / "data [1]"  # what a glob would take for a set of characters
    write(root, *names)
    assert suggested(root) == [f"data [1]/{name}" for name in expected]


def test_a_glob_of_directories(tmp_path: Path) -> None:
    write(tmp_path / "data", "2025/a.csv", "2026/b.csv")
    assert f"give the glob '{tmp_path}/data/20*/*.csv' in quotes" in refusal(tmp_path / "data/20*")


def test_directories_without_data_get_no_glob(tmp_path: Path) -> None:
    (tmp_path / "data/x/y").mkdir(parents=True)
    write(tmp_path / "data", "x/.hidden")
    with pytest.raises(BadData, match=r"no file in .*/data$"):
        find_files(str(tmp_path / "data"))
