"""Statistics of data by jobs of workers: the same bits however many there are, also if one is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

import elasticdl
from elasticdl.errors import BadInput
from elasticdl.tabular.statistics import Statistics, finished, of_table
from tests.tabular.tables import employees

ROWS = 3000


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "data").mkdir()
    table = employees(ROWS)
    for number in range(3):
        pq.write_table(
            table.slice(number * 1000, 1000), tmp_path / f"data/{number}.parquet", row_group_size=100
        )
    return tmp_path / "data"


def counters() -> Iterator[psutil.Process]:
    """Return the workers of this process's jobs."""
    for one in psutil.Process().children(recursive=True):
        try:
            if "elasticdl.job.counting" in one.cmdline():
                yield one
        except psutil.Error:
            continue


def kill_one(ended: threading.Event, killed: list[int]) -> None:
    """Kill the first worker that has computed for a while."""
    while not ended.wait(0.02):
        for one in counters():
            try:
                if one.cpu_times().user > 0.7:
                    one.kill()
                    killed.append(one.pid)
                    return
            except psutil.Error:
                continue


def test_the_bits_are_the_same_for_any_workers_and_kills(data: Path) -> None:
    found: list[Statistics] = []
    for workers in (1, 2, 4):
        ended, killed = threading.Event(), list[int]()
        killer = threading.Thread(target=kill_one, args=(ended, killed))
        if workers == 2:
            killer.start()
        found.append(elasticdl.analyze(data, records_per_task=100, num_workers=workers))
        ended.set()
        if workers == 2:
            killer.join()
            assert killed, "a worker was killed"
    assert found[0] == found[1] == found[2]
    assert found[0].rows == ROWS
    whole = finished(of_table(pq.read_table(data)))
    assert found[0].columns["city"] == whole.columns["city"]
    assert found[0].columns["team"].values == whole.columns["team"].values


def test_columns_of_csv_files_are_texts_and_numbers(data: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n,y\n3,x\n")
    found = elasticdl.analyze(
        tmp_path / "t.csv", records_per_task=2, reader_params={"header": True}, num_workers=1
    )
    numbers = found.columns["a"].numbers
    assert numbers is not None
    assert (numbers.low, numbers.high, numbers.moments.mean) == (1.0, 3.0, 2.0)
    assert found.columns["b"].numbers is None
    assert found.columns["b"].values is not None
    assert found.columns["b"].values.counts == (("x", 2), ("y", 1))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"work": "steps"}, "analyze: work is settled; leave it out"),
        ({"vocabulary": 0}, "vocabulary and records_per_task are 1 or more"),
        ({"minibatch_size": 3}, "minibatch_size"),
    ],
)
def test_what_is_refused(asked: dict[str, object], message: str, data: Path) -> None:
    with pytest.raises(BadInput, match=message):
        elasticdl.analyze(data, **asked)  # type: ignore[arg-type]
