"""Jobs that evaluate or predict: each record counts once, and nothing depends on who did which task."""

from __future__ import annotations

import csv
import functools
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus

from .conftest import Job, Result, SmallDisk, Start
from .test_evaluation import master_of
from .test_faults import seen

ZOO = Path(__file__).parent / "zoo"
FLOWERS = 120
TASKS = 30
"""Of one minibatch of 4 flowers."""


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    np.savez(tmp_path / "petals.npz", weight=np.array([0.37]))
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go"), "TOLD": str(tmp_path / "told")},
        model_zoo=ZOO,
        model_def="foretold.custom_model",
        trained_model=tmp_path / "petals.npz",
        minibatch_size=4,
        witness_seconds=1,
    )


@pytest.fixture
def evaluate(begin: Start, iris: Path) -> Start:
    return functools.partial(begin, command="evaluate", validation_data=iris / "train")


@pytest.fixture
def predict(begin: Start, iris: Path, tmp_path: Path) -> Start:
    return functools.partial(
        begin,
        command="predict",
        prediction_data=iris / "train",
        num_minibatches_per_task=1,
        output=tmp_path / "predictions",
    )


def flowers(folder: Path) -> np.ndarray:
    rows = [row for path in sorted((folder / "train").iterdir()) for row in csv.reader(path.open())]
    return np.array([row for row in rows if row[0][:1].isdigit()], np.float64)


def disturb(job: Job, go: Path, doing: str) -> None:
    """Kill a worker whenever two are at work, and once the master, until three workers were killed."""
    kills, master_killed = 0, False
    for item in seen(job):
        if not isinstance(item, JobStatus):
            continue
        at_work = [one.pid for one in item.workers if one.state == doing and one.pid is not None]
        if kills >= 3 and master_killed:
            go.touch()
        elif kills == 1 and not master_killed and at_work:
            os.kill(master_of(job), signal.SIGKILL)
            master_killed = True
        elif len(at_work) >= 2 and kills < 3:
            kills += was_killed(at_work[kills % len(at_work)])
    assert master_killed
    assert kills == 3


def was_killed(process: int) -> bool:
    """Kill a process, unless it has ended since its status was written."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def nothing_left(result: Result, folder: Path) -> None:
    left = [path.name for path in folder.iterdir() if "predictions" in path.name]
    assert not left, f"{left} is left\n{result.err}"


# ---------------------------------------------------------------------- evaluation


def test_an_evaluation_has_the_same_bits_whichever_workers_are_killed(
    evaluate: Start, iris: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.touch()
    quiet = evaluate(num_workers=1).wait().succeeded().summary
    assert set(quiet["metrics"]) == {"val_loss", "val_size_mean"}
    sizes = 0.37 * flowers(iris)[:, 2]
    assert quiet["metrics"]["val_size_mean"] == pytest.approx(sizes.mean(), rel=1e-12)
    assert quiet["records_evaluated"] == FLOWERS
    go.unlink()
    job = evaluate(num_workers=3, relaunch_on_worker_failure=100)
    disturb(job, go, "evaluating")
    summary = job.wait().succeeded().summary
    assert summary["metrics"] == quiet["metrics"]
    assert summary["members"]["lost"] >= 2, "one may be lost before the second master has heard of it"
    assert "records_trained" not in summary


# ---------------------------------------------------------------------- prediction


def test_predictions_have_the_same_bytes_whichever_workers_are_killed(
    predict: Start, iris: Path, tmp_path: Path
) -> None:
    go, output = tmp_path / "go", tmp_path / "predictions"
    go.touch()
    predict(num_workers=1).wait().succeeded()
    quiet = sums(output)
    assert sorted(quiet) == [f"part-{task:08d}.parquet" for task in range(TASKS)]
    rows = pyarrow.parquet.read_table(output)
    data = flowers(iris)
    assert np.array_equal(np.array(rows["size"].to_pylist()), 0.37 * data[:, 2:4])
    assert rows["long"].to_pylist() == (0.37 * data[:, 2] > 1).tolist()
    places = list(zip(rows["shard"].to_pylist(), rows["record"].to_pylist(), strict=True))
    assert places == sorted(set(places)), "each record has one row, in order"
    assert len(places) == FLOWERS
    go.unlink()
    job = predict(num_workers=4, relaunch_on_worker_failure=100, output=tmp_path / "predictions2")
    disturb(job, go, "predicting")
    job.wait().succeeded()
    assert sums(tmp_path / "predictions2") == quiet
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".predictions")]


def test_csv_has_a_column_for_each_number_and_what_is_kept_of_the_data(
    predict: Start, iris: Path, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    with (tmp_path / "named.csv").open("w") as file:
        file.write("a,b,length,width,class\n")
        for row in flowers(iris)[:10]:
            file.write(",".join(map(str, row)) + "\n")
    predict(
        num_workers=1,
        prediction_data=tmp_path / "named.csv",
        data_reader_params="header=True",
        prediction_keep="length",
        output_format="csv",
    ).wait().succeeded()
    parts = sorted((tmp_path / "predictions").iterdir())
    assert [part.name for part in parts] == [f"part-{task:08d}.csv" for task in range(3)]
    rows = [row for part in parts for row in csv.DictReader(part.open())]
    assert list(rows[0]) == ["shard", "record", "length", "size_0", "size_1", "long"]
    assert [int(row["record"]) for row in rows] == list(range(10))
    assert [float(row["size_0"]) for row in rows] == [0.37 * float(row["length"]) for row in rows]


def test_a_bad_record_that_may_be_skipped_is_a_row_of_nulls(
    predict: Start, iris: Path, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    lines = [",".join(map(str, row)) for row in flowers(iris)[:10]]
    lines[5] = "1,2"
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {"num_workers": 1, "prediction_data": tmp_path / "some.csv"}
    refused = predict(**settings).wait()
    assert refused.code == 2, refused.err
    nothing_left(refused, tmp_path)
    predict(**settings, max_bad_records=1).wait().succeeded()
    rows = pyarrow.parquet.read_table(tmp_path / "predictions")
    assert rows["record"].to_pylist() == list(range(10))
    assert [row is None for row in rows["size"].to_pylist()] == [place == 5 for place in range(10)]
    assert [row is None for row in rows["long"].to_pylist()] == [place == 5 for place in range(10)]


def test_a_processor_gets_whole_tasks_with_their_numbers_if_it_takes_them(
    predict: Start, tmp_path: Path
) -> None:
    """And files are written, as an output is asked for."""
    (tmp_path / "go").touch()
    predict(num_workers=2, prediction_outputs_processor="Told", num_minibatches_per_task=3).wait().succeeded()
    told = [list(map(int, line.split())) for line in (tmp_path / "told").read_text().splitlines()]
    assert {task for _, task, _, _ in told} == set(range(10))
    assert {worker for worker, _, _, _ in told} <= {0, 1}
    assert all(count == 12 for _, _, count, _ in told)
    assert len(list((tmp_path / "predictions").iterdir())) == 10


def test_a_processor_gets_minibatches(predict: Start, tmp_path: Path) -> None:
    """And nothing is written without an output."""
    (tmp_path / "go").touch()
    predict(num_workers=1, prediction_outputs_processor="ToldByMinibatch", output="").wait().succeeded()
    assert (tmp_path / "told").read_text() == "0 4\n" * TASKS
    assert not (tmp_path / "predictions").exists()


def test_ctrl_c_ends_a_prediction_and_leaves_nothing(predict: Start, tmp_path: Path) -> None:
    job = predict(num_workers=2)
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
            job.process.send_signal(signal.SIGINT)
            break
    result = job.wait()
    assert result.code == 130, result.err
    assert result.summary["status"] == "interrupted"
    nothing_left(result, tmp_path)


def test_predictions_that_can_not_be_put_in_their_place_are_kept(predict: Start, tmp_path: Path) -> None:
    job = predict(num_workers=1)
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
            (tmp_path / "predictions").mkdir()  # somebody makes it after it was looked for
            (tmp_path / "predictions" / "mine").touch()
            (tmp_path / "go").touch()
            break
    result = job.wait()
    assert result.code == 1, result.err
    reason = result.summary["reason"]
    kept = Path(reason.partition("the predictions are at ")[2].partition(",")[0])
    assert "can't be put in its place" in reason
    assert len(list(kept.iterdir())) == TASKS


def test_a_part_that_can_t_be_written_ends_the_job_and_leaves_nothing(
    predict: Start, small_disk: SmallDisk
) -> None:
    job = predict(num_workers=1, output=small_disk.path / "predictions")
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
            small_disk.fill()
            break
    result = job.wait()
    assert result.code == 1, result.err
    assert f"predictions can't be written to {small_disk.path}" in result.summary["reason"]
    assert "no space left on device" in result.summary["reason"]
    assert [path.name for path in small_disk.path.iterdir()] == ["filling"]


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trained_model": "none.npz"}, "--trained_model: 'none.npz' does not exist"),
        ({"trained_model": "."}, "--trained_model: '.' is a directory"),
        (
            {"trained_model": "tables"},
            "--trained_model: 'tables' has the weights of a model as Parquet files",
        ),
        ({"trained_model": "damaged.npz"}, "damaged.npz is no whole .npz file"),
        ({"trained_model": "other.npz"}, "other.npz is of another model: it has bias (2,), weight (1,)"),
        ({"output": "there"}, "--output: 'there' exists; predictions go to a new directory"),
        ({"output": ""}, "--output is required: it names the directory of the predictions"),
        ({"output": "p.npz"}, "'p.npz' is the name of a file in the format npz"),
        ({"output": "p.npz"}, "--output_format=parquet writes a directory; name a directory"),
        ({"output_format": "npz"}, "predictions are written as parquet or csv, received 'npz'"),
        ({"prediction_keep": "length"}, "--prediction_keep: the data has no column 'length'"),
        ({"prediction_keep": "shard"}, "--prediction_keep: 'shard' says which record a prediction is of"),
        ({"prediction_data": "nothing"}, "--prediction_data: 'nothing' does not exist"),
        ({"environment": {"GO": "/", "DROPS": "1"}}, "has 3 rows for the 4 records of"),
        ({"training_data": "petals.npz"}, "--training_data is a setting of `elasticdl train`"),
        ({"prediction_outputs_processor": "Nobody"}, "does not define 'Nobody'"),
        (
            {"prediction_outputs_processor": "Petals"},
            "Petals: a processor of predictions has a method process(self, predictions, worker_id)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "=".join(map(str, next(iter(value.items())))),
)
def test_bad_input_is_refused_with_nothing_made(
    predict: Start, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "there").mkdir()
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "variables.parquet").touch()
    (tmp_path / "damaged.npz").write_bytes((tmp_path / "petals.npz").read_bytes()[:100])
    np.savez(tmp_path / "other.npz", weight=np.zeros(1), bias=np.zeros(2))
    result = predict(**{"num_workers": 1, **settings}).wait()
    assert result.code == 2, result.err
    assert said in result.err
    assert "Task(" not in result.err
    nothing_left(result, tmp_path)


def test_an_evaluation_needs_a_model_and_data(begin: Start) -> None:
    for settings, said in (
        ({"validation_data": ""}, "--validation_data is required"),
        (
            {"validation_data": "x", "trained_model": ""},
            "--trained_model or --checkpoint_dir_for_init is required",
        ),
    ):
        result = begin(command="evaluate", **settings).wait()
        assert result.code == 2
        assert said in result.err
