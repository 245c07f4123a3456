"""Tasks of a program in this process alone, and what is refused of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data.plan.programtasks import MOST, tasks_of_program
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadModel, BadSetting, Unwritable
from elasticdl.worker.shards import face
from elasticdl.worker.shards.alone import AloneTasks
from elasticdl.worker.shards.output import TaskOutput, parts_in
from elasticdl.worker.shards.source import Numbers, fingerprint_of, open_source
from elasticdl.worker.shards.task import ShardTask


def begun(source: Any, per_task: int = 4, output: Path | str = "", **params: Any) -> AloneTasks:
    alone = AloneTasks(str(output))
    alone.begin(open_source(source, per_task, params, alone.room), per_task)
    return alone


def through(alone: AloneTasks) -> Iterator[ShardTask]:
    return iter(alone.next, None)


def test_numbers_are_cut_in_their_order() -> None:
    alone = begun(10)
    assert [(task.number, task.start, task.end, len(task), list(task)) for task in through(alone)] == [
        (0, 0, 4, 4, [0, 1, 2, 3]),
        (1, 4, 8, 4, [4, 5, 6, 7]),
        (2, 8, 10, 2, [8, 9]),
    ]
    assert alone.next() is None
    alone.finish()


@pytest.mark.parametrize("items", [["ab", "def"], np.array(["ab", "def"])])
def test_items_of_a_sequence(items: Any) -> None:
    assert [list(task) for task in through(begun(items, 1))] == [["ab"], ["def"]]


def test_the_fingerprint_of_items_is_of_what_is_the_same_in_every_process() -> None:
    mixed = [None, True, 1.5, 10**5000, ("a", b"\xff", [Path("b")]), "\udcff"]
    assert fingerprint_of(mixed) == fingerprint_of(tuple(mixed))
    assert fingerprint_of(mixed) != fingerprint_of(mixed[::-1])
    assert fingerprint_of([["ab"], "c"]) != fingerprint_of([["ab", "c"]])
    assert fingerprint_of([object()]) == fingerprint_of([object()])


def test_records_of_files_and_no_task_has_those_of_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("n,w\n" + "".join(f"{name}{row},x\n" for row in range(3)))
    alone = begun(tmp_path, 2, header=True)
    assert [[row[0] for row in task] for task in through(alone)] == [
        ["a0", "a1"],
        ["a2"],
        ["b0", "b1"],
        ["b2"],
    ]


def test_records_of_a_table_are_dictionaries(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"n": [1, 2, 3], "w": ["x", "y", "z"]}), tmp_path / "a.parquet")
    (task,) = through(begun(str(tmp_path / "a.parquet")))
    assert list(task) == [{"n": 1, "w": "x"}, {"n": 2, "w": "y"}, {"n": 3, "w": "z"}]
    assert task.shard.endswith("a.parquet")


def test_files_appear_together_when_all_tasks_are_done(tmp_path: Path) -> None:
    alone = begun(9, output=tmp_path / "out")
    for task in through(alone):
        assert not (tmp_path / "out").exists()
        if task.number != 1:  # a task need not have a file
            with task.output(suffix=".txt") as path:
                path.write_text(str(len(task)))
    alone.finish()
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "part-00000000.txt": "4",
        "part-00000002.txt": "1",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("ends", ["early", "by an error"])
def test_a_program_that_does_not_finish_leaves_nothing(tmp_path: Path, ends: str) -> None:
    alone = begun(9, output=tmp_path / "out")
    for task in through(alone):
        Path(task.output()).write_text("x")
        if task.number == 1:
            break
    if ends == "early":
        with pytest.raises(BadModel, match="before all tasks were done"):
            alone.finish()
    else:
        alone.fail(ValueError())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "per_task", "sentence"),
    [
        (0, 4, "there are no records: the source is the number 0"),
        (-3, 4, "there are no records"),
        ([], 4, "there are no records: the source is empty"),
        (True, 4, "received bool"),
        (1.5, 4, "received float"),
        ({"a": 1}, 4, "received dict"),
        (iter([1]), 4, "received list_iterator"),
        (9, 0, "records_per_task is 0"),
        (9, -1, "records_per_task is -1"),
        (MOST + 1, 1, "use records_per_task=2 or more"),
    ],
)
def test_what_can_not_be_processed(source: Any, per_task: int, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        begun(source, per_task)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="missing"):
        begun(tmp_path / "missing.csv")
    with pytest.raises(BadSetting, match="reader_params is for files"):
        begun(9, header=True)


def test_many_small_files_are_to_be_joined() -> None:
    shards = [Shard(f"file-{number}", 0, 1) for number in range(MOST + 1)]
    with pytest.raises(BadSetting, match="join files"):
        tasks_of_program(shards, 512)


def test_an_output_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"exists; .*name another one"):
        AloneTasks(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match="can't be written"):
        begun(9, output=tmp_path / "file" / "out")


def test_mistakes_with_the_file_of_a_task(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"no directory for it; .*--output .*output=DIR"):
        next(through(begun(9))).output()
    alone = begun(9, output=tmp_path / "out")
    task = next(through(alone))
    with pytest.raises(BadSetting, match="expected a suffix"):
        task.output("../x")
    task.output()
    with pytest.raises(BadSetting, match="a task has one file"):
        task.output()
    with pytest.raises(BadSetting, match="no file was written"):
        alone.next()


def place(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def write(folder: Path, text: str, task: int = 12) -> TaskOutput:
    output = TaskOutput(folder, task, ".txt")
    Path(output).write_text(text)
    return output


@pytest.mark.parametrize("links", [True, False])
def test_what_is_published_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Also where the file system has no hard links."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    folder = place(tmp_path)
    first, second = write(folder, "first"), write(folder, "second")
    first.publish()
    second.publish()
    assert (folder / "part-00000012.txt").read_text() == "first"
    assert parts_in(folder) == {12}
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_an_exception_drops_a_file(tmp_path: Path) -> None:
    folder = place(tmp_path)
    output = write(folder, "half")
    output.__exit__(ValueError, ValueError("bad"), None)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_a_full_disk_is_said_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(Unwritable, match=r"part-00000012\.txt"):
        write(place(tmp_path), "x").publish()


def test_a_file_that_comes_after_the_jobs_end_is_dropped(tmp_path: Path) -> None:
    folder = place(tmp_path)
    late = write(folder, "late")
    folder.rename(tmp_path / "result")
    late.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_long_tasks_give_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.5, 1.5, 1.6, 2.0, 2.1])
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    signs: list[None] = []
    task = ShardTask(tasks_of_program(Numbers(4).shards, 4), 0, Numbers(4), None, lambda: signs.append(None))
    assert list(task) == [0, 1, 2, 3]
    assert len(signs) == 1


def test_a_second_call_is_refused_as_in_a_job_it_would_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_alone", False)
    monkeypatch.setattr(face, "at_program_end", lambda tasks: None)
    assert [len(task) for task in face.shards(5, 3)] == [3, 2]
    with pytest.raises(BadSetting, match="called once in a program"):
        face.shards(5, 3)
