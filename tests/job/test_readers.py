"""Jobs whose records come from tables, from a reader of another package, or from one in the model file."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import JobStatus
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import shards_of
from elasticdl.data.readers.writing import write_recordio
from elasticdl.errors import BadInput
from elasticdl.job.datafiles import open_job_data
from elasticdl.job.master import open_data
from elasticdl.job.submit import prepare
from elasticdl.spec import edge, entrypoints
from elasticdl.spec.jobspec import JobKind, JobSpec
from tests.httpfiles import Files, serving

from .conftest import Job, Start
from .test_faults import ZOO, at_step, kill, seen, training

RECORDS, EPOCHS = 600, 2


@pytest.mark.parametrize("servers", [{}, {"num_ps_pods": 2}], ids=["", "servers"])
def test_each_record_of_several_parts_of_one_table_is_trained_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: dict[str, int]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        model_zoo=ZOO,
        model_def="parts.custom_model",
        training_data="squares",
        num_workers=2,
        minibatch_size=10,
        num_minibatches_per_task=2,
        num_epochs=EPOCHS,
        environment={"GO": str(tmp_path / "go")},
        audit=tmp_path / "audit",
        **servers,
    )
    at_step(job, 1, lambda status: kill(training(status)[-1]))
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] == 1
    assert summary["records_trained"] == RECORDS * EPOCHS
    report = audit(tmp_path / "audit")
    epochs = report.epochs
    assert [epoch.complete for epoch in epochs] == [True] * EPOCHS


# ------------------------------------------------------------------ tables

ROWS, BLOCK, PASSES = 1000, 50, 2


def parquet(path: Path, rows: pa.Table) -> None:
    pa.parquet.write_table(rows, path, row_group_size=BLOCK)


def arrow(path: Path, rows: pa.Table) -> None:
    with pa.ipc.new_file(path, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(rows, max_chunksize=BLOCK)


def jsonl(path: Path, rows: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))


def table(first: int, end: int) -> pa.Table:
    numbers = range(first, end)
    words = [f"row {number}" for number in numbers]
    return pa.table({"number": numbers, "double": [2.0 * number for number in numbers], "word": words})


Begin = functools.partial[Job]


@pytest.fixture
def begin(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ZOO,
        model_def="table.custom_model",
        training_data=tmp_path / "data",
        num_workers=2,
        minibatch_size=8,
        num_minibatches_per_task=2,
        num_epochs=PASSES,
        audit=tmp_path / "audit",
        witness_seconds=2,
    )


def check(job: Job, tmp_path: Path) -> None:
    """Kill a worker, and look whether each record of each epoch was trained once."""
    at_step(job, 5, lambda status: kill(training(status)[-1]))
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] == 1
    assert summary["records_trained"] == ROWS * PASSES
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [ROWS] * PASSES


def refused(begin: Begin, **settings: object) -> str:
    """Return why the data of a job is refused in this process."""
    given = {"job_name": "refused", **begin.keywords, **settings}
    del given["environment"], given["audit"]
    with pytest.raises(BadInput) as caught:
        read_all(edge.build(edge.from_arguments(given), JobKind.TRAIN))
    return str(caught.value)


def read_all(spec: JobSpec) -> None:
    """Submit a job, and open its data, as its master does, and read it, as its workers do."""
    place, lock = prepare(spec)
    try:
        spec = place.spec()
        open_data(place, spec, lambda done, total: None, lambda text, waits: None)
        reader = open_job_data(place, spec, spec.data)
        for number, shard in enumerate(shards_of(reader)):
            records = range(shard.start, shard.start + shard.count)
            reader.read(Task(number, 0, shard, records.start, records.stop), records)
    finally:
        place.close()
        os.close(lock)


def refused_by_the_job(begin: Begin, tmp_path: Path, **settings: object) -> str:
    """Return what a job says whose data is refused; it has written nothing."""
    result = begin(output=tmp_path / "model.npz", **settings).wait()
    assert result.code == 2, result.err
    assert not (tmp_path / "model.npz").exists()
    return result.err


@pytest.mark.parametrize(
    ("write", "servers"),
    [(parquet, {}), (arrow, {"num_ps_pods": 2}), (jsonl, {})],
    ids=["parquet", "arrow-servers", "jsonl"],
)
def test_each_row_of_tables_is_trained_once(
    begin: Begin, tmp_path: Path, write: Callable[[Path, pa.Table], None], servers: dict[str, int]
) -> None:
    write(tmp_path / "data" / "1", table(0, 610))
    write(tmp_path / "data" / "2", table(610, ROWS))
    check(begin(**servers), tmp_path)


def test_each_record_of_recordio_is_trained_once(begin: Begin, tmp_path: Path) -> None:
    rows = [f"{number},{2 * number}".encode() for number in range(ROWS)]
    write_recordio(tmp_path / "data" / "data-00000", rows[:610], chunk=400)
    write_recordio(tmp_path / "data" / "data-00001", rows[610:], chunk=300)
    check(begin(feed="feed_bytes"), tmp_path)


def recordio(path: Path, rows: pa.Table) -> None:
    write_recordio(path, [str(number).encode() for number in rows["number"].to_pylist()])


def test_each_row_of_compressed_files_is_trained_once(begin: Begin, tmp_path: Path) -> None:
    for name, rows in (("1", table(0, 610)), ("2", table(610, ROWS))):
        lines = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
        (tmp_path / "data" / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    check(begin(), tmp_path)


def test_a_compressed_file_that_was_cut(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "data" / "1.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" * 9000)[:-9])
    assert f"{path} can't be decompressed (gzip)" in refused(begin)


def test_a_row_without_a_value_is_skipped_or_refused_and_blocks_that_are_fewer_than_workers_are_mentioned(
    begin: Begin, tmp_path: Path
) -> None:
    rows = table(0, ROWS).to_pylist()
    rows[123]["number"] = None
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "1")
    reason = refused(begin)
    assert "record 123 of" in reason
    assert "its column 'number' is null, for which int64 has no value" in reason
    (tmp_path / "go").touch()
    result = begin(max_bad_records=1).wait().succeeded()
    assert result.summary["bad_records"] == 1
    assert (
        "the data comes in blocks of up to 1,000 records, which no task splits: an epoch has 1 task, so 1 of 2 workers"
        in result.err
    )


@pytest.mark.parametrize(
    ("write", "damage", "message", "refuse"),
    [
        (parquet, lambda content: content[:-10], "can't be read as a file of Parquet", refused_by_the_job),
        (parquet, lambda content: b"", "is empty", None),
        (arrow, lambda content: content[: len(content) // 2], "can't be read as a file of Arrow", None),
        (jsonl, lambda content: b"{" * 100 + b"\n", "can't be read as JSON lines", None),
        (jsonl, lambda content: content[:-100], "record 998 of", refused_by_the_job),
        (recordio, lambda content: content[:-1], "ends in the middle of record 0", None),
    ],
)
def test_files_that_are_wrong(
    begin: Begin,
    tmp_path: Path,
    write: Callable[[Path, pa.Table], None],
    damage: Callable[[bytes], bytes],
    message: str,
    refuse: Callable[..., str] | None,
) -> None:
    """What the master finds, and what a worker finds, end a whole job."""
    path = tmp_path / "data" / "1"
    write(path, table(0, ROWS))
    path.write_bytes(damage(path.read_bytes()))
    assert message in refused(begin)
    if refuse is not None:
        (tmp_path / "go").touch()
        assert message in refuse(begin, tmp_path)


# ------------------------------------------------------------------ databases


def sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE train (number, double, word)")
        rows = table(0, ROWS).to_pylist()
        database.executemany("INSERT INTO train VALUES (?, ?, ?)", [tuple(row.values()) for row in rows])
        database.commit()


def duck(path: Path) -> None:
    with duckdb.connect(str(path)) as database:
        rows = table(0, ROWS)
        assert len(rows) == ROWS
        database.execute("CREATE TABLE train AS SELECT * FROM rows")


@pytest.mark.parametrize(("scheme", "write"), [("sqlite", sqlite), ("duckdb", duck)])
def test_each_row_of_a_database_is_trained_once(
    begin: Begin, tmp_path: Path, scheme: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "data" / "my.db")
    job = begin(training_data=f"{scheme}:///data/my.db?table=train")
    at_step(job, 5, lambda status: kill(training(status)[-1]))
    (tmp_path / "data" / "my.db").unlink()  # it was asked once
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] == 1
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [ROWS] * PASSES


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("sqlite:///nowhere.db?table=train", "there is no database 'nowhere.db' (looked from"),
        ("sqlite:///my.db", "say which rows of"),
        ("sqlite:///my.db?table=tain", "the database says: no such table: tain"),
        (
            "postgresql://me@127.0.0.1:1/db?table=t",
            "postgresql://me@127.0.0.1:1/db?table=t: the database says",
        ),
    ],
)
def test_databases_that_are_wrong(begin: Begin, tmp_path: Path, data: str, message: str) -> None:
    sqlite(tmp_path / "my.db")
    assert message in refused(begin, training_data=data)
    if "tain" in data:
        assert message in refused_by_the_job(begin, tmp_path, training_data=data)


# ------------------------------------------------------------------ servers of files


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Files]:
    (tmp_path / "served" / "data").mkdir(parents=True)
    with serving(tmp_path / "served") as server:
        yield server


STRINGS = {"feed": "feed_strings", "data_reader_params": "rows='strings'"}


@pytest.mark.parametrize(("write", "rows"), [(parquet, STRINGS), (jsonl, {})], ids=["parquet", "jsonl"])
def test_each_row_on_a_server_is_trained_once(
    begin: Begin,
    tmp_path: Path,
    server: Files,
    write: Callable[[Path, pa.Table], None],
    rows: dict[str, str],
) -> None:
    write(server.root / "data" / "1", table(0, 610))
    write(server.root / "data" / "2", table(610, ROWS))
    check(begin(training_data=f"{server.url}/data/", **rows), tmp_path)


def waits(job: Job) -> str:
    """Return the reason of the first status that says that the job waits."""
    states = (one for one in seen(job) if isinstance(one, JobStatus) and one.state == "waiting")
    return next(states).reason


def test_a_server_that_is_silent_for_a_while(begin: Begin, tmp_path: Path, server: Files) -> None:
    jsonl(server.root / "data" / "1", table(0, ROWS))
    job = begin(training_data=f"{server.url}/data/1", stall_seconds=2)

    def silence(_: JobStatus) -> bool:
        server.status = 503
        return server.refused.wait(60)

    at_step(job, 5, silence)
    waiting = threading.Timer(
        5, setattr, (server, "status", 0)
    )  # longer than a worker may be without progress
    waiting.start()
    (tmp_path / "go").touch()
    assert f"is waiting for {server.url}/data/1, for 300 s at most" in waits(job)
    result = job.wait().succeeded()
    waiting.join()
    assert result.summary["members"]["lost"] == 0
    assert f"waiting for {server.url}/data/1, for 300 s at most" in result.err
    assert f"{server.url}/data/1 answers again" in result.err
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [ROWS] * PASSES


def test_each_record_of_recordio_on_a_server_is_trained_once_with_parameter_servers(
    begin: Begin, tmp_path: Path, server: Files
) -> None:
    rows = [f"{number},{2 * number}".encode() for number in range(ROWS)]
    write_recordio(server.root / "data" / "1", rows[:610], chunk=400)
    write_recordio(server.root / "data" / "2", rows[610:], chunk=300)
    check(begin(training_data=f"{server.url}/data/", feed="feed_bytes", num_ps_pods=2), tmp_path)


def test_a_server_that_is_gone(begin: Begin, tmp_path: Path, server: Files) -> None:
    jsonl(server.root / "data" / "1", table(0, ROWS))
    job = begin(training_data=f"{server.url}/data/1", storage_seconds=1)

    def silence(_: JobStatus) -> bool:
        server.status = 503
        return server.refused.wait(60)

    at_step(job, 5, silence)
    (tmp_path / "go").touch()
    result = job.wait()
    assert result.code == 1, result.err
    assert result.summary["reason"].startswith(f"{server.url}/data/1 has not answered for ")
    assert result.summary["reason"].endswith("; --storage_seconds says how long a job waits for it")
    assert result.summary["reason"] in result.err
    assert not list(tmp_path.glob("state/**/logs/worker-*-2*"))  # nobody has waited once more
    result = begin(training_data=f"{server.url}/data/1", storage_seconds=1, audit="").wait()
    assert result.code == 1, result.err
    assert result.summary["reason"].startswith(f"{server.url}/data/1 has not answered for ")
    assert f"waiting for {server.url}/data/1, for 1 s at most" in result.err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data/nowhere", "data/nowhere does not exist"),
        ("data/empty", "has no records: the file is empty"),
        ("data/cut", "data/cut can't be read as a file of Parquet"),
    ],
)
def test_files_of_a_server_that_are_wrong(
    begin: Begin, tmp_path: Path, server: Files, data: str, message: str
) -> None:
    (server.root / "data" / "empty").touch()
    parquet(server.root / "data" / "cut", table(0, ROWS))
    (server.root / "data" / "cut").write_bytes((server.root / "data" / "cut").read_bytes()[:-10])
    assert message in refused(begin, training_data=f"{server.url}/{data}")


# ------------------------------------------------------------------ images


def image(folder: Path, number: int) -> str:
    """Write a small image that ends with its name."""
    folder.mkdir(exist_ok=True, parents=True)
    name = f"{number}.gif"
    (folder / name).write_bytes(b"GIF89a" + name.encode() + b";")
    return name


def test_each_image_of_folders_is_trained_once(begin: Begin, tmp_path: Path) -> None:
    for number in range(ROWS):
        image(tmp_path / "data" / ("odd" if number % 2 else "even"), number)
    check(begin(model_def="pictures.custom_model", data_cache=tmp_path / "cache", num_ps_pods=2), tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []  # it was there, and went with the job


def coco(tmp_path: Path) -> None:
    boxes = [(number, box) for number in range(ROWS) for box in range(number % 3)]
    content = {
        "images": [
            {"id": number, "file_name": image(tmp_path / "data", number), "width": 9, "height": 9}
            for number in range(ROWS)
        ],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [
            {"id": at, "image_id": number, "category_id": 1, "bbox": [box, 0, 3, 4]}
            for at, (number, box) in enumerate(boxes)
        ],
    }
    (tmp_path / "data.json").write_text(json.dumps(content))


BOXES = {
    "model_def": "pictures.custom_model",
    "feed": "feed_boxes",
    "data_reader_params": "annotations='../{name}.json'",
}


def test_each_image_of_coco_is_trained_once(begin: Begin, tmp_path: Path) -> None:
    coco(tmp_path)
    check(begin(**BOXES), tmp_path)


def test_images_that_are_wrong(begin: Begin, tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "go").touch()
    (tmp_path / "data" / "7.gif").write_bytes(b"GIF89a7.g")
    result = begin(**BOXES).wait()
    assert result.code == 2, result.err
    assert f"the image {tmp_path}/data/7.gif" in result.err
    assert "is corrupt: it ends too early" in result.err
    image(tmp_path / "data", 7)
    path = tmp_path / "data.json"
    path.write_text(path.read_text().replace("[0, 0, 3, 4]", "[0, 0, 0, 4]", 1))
    assert "is corrupt: its box [0, 0, 0, 4] has no area (in annotation 0 of data.json)" in refused(
        begin, **BOXES
    )
    (tmp_path / "data" / "7.gif").unlink()
    assert "names 7.gif, which is not in" in refused(begin, **BOXES)


def test_validation_data_with_other_columns(begin: Begin, tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "1", table(0, ROWS))
    jsonl(tmp_path / "heldout", table(0, ROWS).drop_columns(["double"]))
    assert (
        "the column 'double' of training_data is float64, and in validation_data it is missing"
        in refused_by_the_job(begin, tmp_path, validation_data=tmp_path / "heldout")
    )


def test_validation_data_with_other_classes(begin: Begin, tmp_path: Path) -> None:
    image(tmp_path / "data" / "even", 0)
    image(tmp_path / "data" / "odd", 1)
    image(tmp_path / "heldout" / "odd", 3)
    reason = refused(begin, model_def="pictures.custom_model", validation_data=tmp_path / "heldout")
    assert "training_data has the classes even, odd, and validation_data odd" in reason
    assert "classes=['even', 'odd']" in reason


# ------------------------------------------------------------------ readers of other packages

OUTSIDE = Path(__file__).parent / "outside"


@pytest.fixture
def installed(begin: Begin, tmp_path: Path) -> Begin:
    """Start jobs with the readers of a small distribution beside them."""
    (tmp_path / "state.txt").write_text("as it was")
    return functools.partial(
        begin,
        environment={"GO": str(tmp_path / "go"), "PYTHONPATH": str(OUTSIDE)},
        training_data=f"countable://{ROWS}",
        data_reader_params=f"state={str(tmp_path / 'state.txt')!r}",
    )


def test_a_reader_of_another_package(installed: Begin, tmp_path: Path) -> None:
    check(installed(num_ps_pods=2), tmp_path)
    manifest = json.loads((tmp_path / "audit" / "manifest").read_text())
    assert manifest["records_per_task"] == 40
    assert manifest["shards"] == [["numbers", 0, ROWS]]


def test_a_worker_that_finds_other_data_ends_the_job(installed: Begin, tmp_path: Path) -> None:
    job = installed()

    def change_and_kill(status: JobStatus) -> bool:
        (tmp_path / "state.txt").write_text("changed")
        return kill(training(status)[-1])

    at_step(job, 5, change_and_kill)
    result = job.wait()
    assert result.code == 2, result.err
    assert "numbers has changed since the job began" in result.err


def test_a_worker_that_no_longer_finds_the_data_says_that_it_was_there(begin: Begin, tmp_path: Path) -> None:
    jsonl(tmp_path / "data" / "rows.jsonl", table(0, ROWS))
    job = begin()

    def remove_and_kill(status: JobStatus) -> bool:
        shutil.rmtree(tmp_path / "data")
        return kill(training(status)[-1])

    at_step(job, 5, remove_and_kill)
    result = job.wait()
    assert result.code == 2, result.err
    assert (
        f"{tmp_path / 'data'} is gone, or this worker can't see it: it was there when the job began"
        in result.err
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("countable://many", "countable://many: expected a number of rows; write countable://1000"),
        (
            "nonsense://x",
            "no reader of the name 'nonsense' is installed (installed are broken, countable, hollow, lazy)",
        ),
        ("broken://x", "broken (countable:nothing) can't be loaded"),
        (
            "hollow://x",
            "returned a SimpleNamespace, which is none: it has no metadata, fingerprints, block, read",
        ),
        ("lazy://10", "the block of the reader 'lazy' is 0; expected 1"),
    ],
)
def test_readers_that_can_not_be_used(
    installed: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, message: str
) -> None:
    monkeypatch.syspath_prepend(OUTSIDE)
    monkeypatch.setattr(
        entrypoints, "_entries", entrypoints._entries.__wrapped__
    )  # not what was there before
    assert message in refused(installed, training_data=data)
    if "hollow" in data:
        assert message in refused_by_the_job(installed, tmp_path, training_data=data)
