"""Predictions that go to a table: its rows are there once, whichever loaders are killed and when."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet
import pytest

from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.errors import BadSetting
from elasticdl.job.master import open_data
from elasticdl.spec import edge
from elasticdl.spec.jobspec import JobKind

from .conftest import Job, Start
from .test_evaluation import master_of
from .test_faults import seen
from .test_tasks import FLOWERS, ZOO, flowers


@pytest.fixture
def predict(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    np.savez(tmp_path / "petals.npz", weight=np.array([0.37]))
    (tmp_path / "go").touch()
    return functools.partial(
        start,
        command="predict",
        environment={"GO": str(tmp_path / "go"), "KILLS": str(tmp_path)},
        model_zoo=ZOO,
        model_def="foretold.custom_model",
        trained_model=tmp_path / "petals.npz",
        prediction_data=iris / "train",
        minibatch_size=4,
        num_workers=2,
        witness_seconds=1,
    )


def rows(path: Path, table: str = "predictions") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT * FROM {table}").fetchall()


def kill_the_master(job: Job, tmp_path: Path) -> None:
    """Kill the master while the third loader has its lease; let that go on when there is another one."""
    killed = 0
    for item in seen(job):
        if not isinstance(item, JobStatus):
            continue
        if not killed and (tmp_path / "after").exists() and "are loaded into" in item.reason:
            killed = master_of(job)
            os.kill(killed, signal.SIGKILL)
        elif killed and "are loaded into" in item.reason and master_of(job) != killed:
            (tmp_path / "let").touch()
    assert killed


def test_rows_are_in_a_table_once_whichever_loaders_are_killed(predict: Start, tmp_path: Path) -> None:
    predict(output=tmp_path / "files").wait().succeeded()
    job = predict(model_def="loaded.custom_model", output=f"duckdb:///{tmp_path}/d.db?table=predictions")
    kill_the_master(job, tmp_path)
    result = job.wait().succeeded()
    assert (tmp_path / "before").exists()
    assert (tmp_path / "after").exists()
    assert result.summary["outputs"] == [f"duckdb:///{tmp_path}/d.db?table=predictions"]
    assert result.summary["records_predicted"] == FLOWERS
    with duckdb.connect(str(tmp_path / "d.db")) as database:
        found = database.sql("SELECT * FROM predictions").to_arrow_table()
        loads = database.execute("SELECT table_name, row_count FROM elasticdl_loads").fetchall()
    files = pyarrow.parquet.read_table(tmp_path / "files")
    assert found.to_pylist() == files.to_pylist()
    assert loads == [("predictions", FLOWERS)]
    assert not list((tmp_path / "state").glob("**/predictions")), "the parts are removed"


def test_a_table_of_sqlite_has_a_column_for_each_number_and_is_never_replaced(
    predict: Start, iris: Path, tmp_path: Path
) -> None:
    lines = ["a,b,length,width,class", *(",".join(map(str, row)) for row in flowers(iris)[:10])]
    lines[6] = "1,2"
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")
    settings = {
        "prediction_data": tmp_path / "some.csv",
        "data_reader_params": "header=True",
        "prediction_keep": "length",
        "max_bad_records": 1,
        "output": "sqlite:///d.db?table=predictions",
    }
    result = predict(**settings).wait().succeeded()
    # In what the command prints at the end: so small a job may be over before there is anybody to tell while it runs.
    assert f"sqlite:///{tmp_path}/d.db?table=predictions" in result.out
    assert result.summary["outputs"] == [f"sqlite:///{tmp_path}/d.db?table=predictions"]
    found = rows(tmp_path / "d.db")
    assert [row[:2] for row in found] == [(f"{tmp_path}/some.csv", record) for record in range(10)]
    wanted = [
        (f"{row[2]}", 0.37 * row[2], 0.37 * row[3], int(0.37 * row[2] > 1)) for row in flowers(iris)[:10]
    ]
    wanted[5] = (None, None, None, None)
    assert [row[2:] for row in found] == wanted
    again = predict(**settings).wait()
    assert again.code == 2
    assert (
        "--output: the table predictions of sqlite:///d.db exists; predictions go to a new table" in again.err
    )
    assert rows(tmp_path / "d.db") == found
    assert len(list((tmp_path / "state").glob("**/journal"))) == 1, "no job was made"


def test_a_database_that_stays_away_fails_the_job_and_leaves_nothing(predict: Start, tmp_path: Path) -> None:
    job = predict(output="sqlite:///d.db?table=predictions", storage_seconds=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as database:
        said = []
        for item in seen(job):
            if isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
                database.execute("BEGIN IMMEDIATE")
                break
        for item in seen(job):
            if isinstance(item, JobEvent):
                said.append(item.text)
        result = job.wait()
    assert result.code == 1, result.err
    name = f"sqlite:///{tmp_path}/d.db?table=predictions"
    assert any(
        f"waiting for {name}, for 1 s at most: OperationalError: database is locked" in text for text in said
    )
    assert f"{name} has not answered for 1 s" in result.summary["reason"]
    assert result.summary["outputs"] == []
    assert rows(tmp_path / "d.db", "sqlite_master") == []
    assert not list((tmp_path / "state").glob("**/predictions"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"output": "s3://bucket/x"},
            "--output: predictions go to a new directory of this file system, or to a table",
        ),
        ({"output": "postgresql://me:hidden@host/db?table=t"}, "--output: leave the password out of the URL"),
        ({"output": "sqlite:///d.db"}, "--output: name one new table of sqlite:///d.db"),
        ({"output": "sqlite:///no/d.db?table=t"}, "--output: there is no directory 'no' for the database"),
        ({"output": "sqlite:///notes.txt?table=t"}, "the database says: file is not a database"),
        ({"output": "sqlite:///there?table=t"}, "--output: 'there' is a directory; name a file in it"),
        ({"output": "postgresql://me@127.0.0.1:1/db?table=t"}, "the database says: "),
        (
            {"output": "sqlite:///d.db?table=t", "output_format": "csv"},
            "--output is a table, which has no format",
        ),
        ({"output": "sqlite:///s.json?table=t", "summary": "s.json"}, "is --output or lies in it"),
        ({"output": "sqlite:///d.db?table=t", "prediction_keep": "Long"}, "the data has no column 'Long'"),
        (
            {"output": "postgresql://me@host/db?table=t", "prediction_keep": "a" * 64},
            "has 64 bytes, and PostgreSQL cuts off names after 63",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "=".join(map(str, next(iter(value.items())))),
)
def test_bad_input_is_refused_with_nothing_made(
    predict: Start, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n" * 1000)
    (tmp_path / "there").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    result = predict(**settings).wait()
    assert result.code == 2, result.err
    assert said in result.err
    assert "hidden" not in result.err
    assert {path.name for path in tmp_path.iterdir()} - before <= {"state", "summary-0.json", "edl-test"}


def test_in_pods_the_master_looks_for_the_table(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "d.db")) as database:
        database.execute("CREATE TABLE predictions (a)")
    settings = {
        "model_def": "a.b",
        "trained_model": "/x",
        "prediction_data": "/x",
        "image_name": "elasticdl:test",
        "output": f"sqlite:///{tmp_path}/d.db?table=predictions",
    }
    spec = edge.build(edge.from_arguments(settings), JobKind.PREDICT)
    place = JobPlace(tmp_path, tmp_path, 0.0, tmp_path)
    with pytest.raises(BadSetting, match=r"the table predictions of .* exists"):
        open_data(place, spec, lambda done, total: None, lambda text, waits: None)
