"""Data in directories of directories: the message names a glob, and the glob finds just these files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.data.readers.files import find_files
from elasticdl.errors import BadData
from elasticdl.spec.edge import build, check_paths, from_arguments
from elasticdl.spec.jobspec import JobSpec


def asked(origin: Path) -> JobSpec:
    """Return a job with data from a place."""
    return build(from_arguments({"model_def": "a.b", "training_data": str(origin), "model_zoo": "/"}))


def both_refusals(origin: Path) -> tuple[str, str]:
    """Return what the command and a job's master say of a place."""
    with pytest.raises(BadData) as at_the_edge:
        check_paths(asked(origin), custom_reader=False, directory=False)
    with pytest.raises(BadData) as in_the_master:
        find_files(str(origin))
    return str(at_the_edge.value), str(in_the_master.value)


def refusal(origin: Path) -> str:
    """Return the advice that both give."""
    at_the_edge, in_the_master = both_refusals(origin)
    advice = in_the_master.partition(": ")[2]
    assert at_the_edge.endswith(advice)
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


@pytest.mark.parametrize("origin", ["data", "data/*", "data/b*", "data/b.csv", "**/*.csv"])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            lambda path: path.symlink_to("/nonexistent"),
            "is a link to /nonexistent, which can't be reached (No such file",
        ),
        (
            lambda path: path.symlink_to(path.name),
            "is a link to b.csv, which can't be reached (Too many levels",
        ),
        (
            os.mkfifo,
            "is a FIFO, and only regular files are read; remove it, or give a path or glob without it",
        ),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, and only regular files are read"),
    ],
    ids=["dangling", "loop", "fifo", "device"],
)
def test_what_is_no_file_is_refused_by_name(
    tmp_path: Path, origin: str, make: Callable[[Path], None], what: str
) -> None:
    write(tmp_path / "data", "a.csv", "x/c.csv")
    make(tmp_path / "data/b.csv")
    for text in both_refusals(tmp_path / origin):
        assert f"{tmp_path}/data/b.csv {what}" in text


def test_links_to_files_are_data_and_what_is_skipped_may_be_anything(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/a.csv")
    data = tmp_path / "data"
    (data / "folder").mkdir(parents=True)
    (data / "link.csv").symlink_to(tmp_path / "elsewhere/a.csv")
    for name in (".hidden", "_mark", "b.csv.records-index"):
        (data / name).symlink_to("/nonexistent")
    assert find_files(str(data)) == find_files(f"{data}/*.csv*") == [data / "link.csv"]
    check_paths(asked(data), custom_reader=False, directory=False)


def test_directories_without_data_get_no_glob(tmp_path: Path) -> None:
    (tmp_path / "data/x/y").mkdir(parents=True)
    write(tmp_path / "data", "x/.hidden")
    with pytest.raises(BadData, match=r"no file in .*/data$"):
        find_files(str(tmp_path / "data"))
