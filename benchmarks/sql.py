"""What statements of SQL cost besides training: a table to files and statistics, PostgreSQL's rows and back, and `feed` of derived models.

Run it alone: `python -m benchmarks sql`. A table of people with fourteen columns, of numbers and texts, is in a file of DuckDB.

Snapshots: ours reads all rows by the database's cursor into raw parts, gives columns their types, shuffles, sets rows apart and counts at
each stage; the peer is DuckDB's COPY of the same table to a Parquet file, in the same process. Statistics are those of the snapshot's
training rows, beside the same COPY. PostgreSQL: ours writes raw parts, where the peer, ADBC alone, reads the batches and drops them; rows
back are written in one transaction that is counted, where the peer ingests the table and commits. A server is started for it, in memory's
speed (no fsync), if Debian's package `postgresql` is there.

Feeds: the derived model's own on whole chunks beside the same layers on one record after another, in one process. Jobs: whole ones of two
workers with these two feeds, records per second from the first step to the last, as their summaries say. Sides take turns; beside the
medians of time stands the processor time, of all threads or processes of a side, a server's not.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.inputs import compared, turns
from benchmarks.recorded import Bar
from benchmarks.recovery import ELASTICDL
from benchmarks.servers import ROOT, Row
from benchmarks.servers import table as table

LABEL = "income"
PATIENCE = 580.0
CHUNKS = ((64, 2.0, 2.2), (512, 7.0, 7.5))
"""Rows of a chunk, and how many times as fast as by records its feed must be and should be."""
FED = 16_384
"""Rows of a pass of a feed, at most."""
BATCH = 256
PEOPLE = f"""SELECT CAST(17 + hash(i) % 73 AS INTEGER) AS age, CAST(hash(i, 1) % 99 AS INTEGER) AS hours,
    CAST(CASE WHEN hash(i, 2) % 12 = 0 THEN hash(i, 3) % 99999 ELSE 0 END AS DOUBLE) AS gain, (hash(i, 4) % 1000003) / 7.0 AS weight,
    ln(1 + hash(i, 5) % 1000003) AS share, CAST(hash(i, 6) % 16 AS BIGINT) AS schooling, 'work ' || hash(i, 7) % 9 AS work,
    'education ' || hash(i, 6) % 16 AS education, 'status ' || hash(i, 8) % 7 AS status, 'job ' || hash(i, 9) % 15 AS job,
    'place ' || hash(i, 10) % 400 AS place, hash(i, 11) % 2 = 0 AS owner, DATE '2000-01-01' + CAST(hash(i, 12) % 9000 AS INTEGER) AS since,
    CASE WHEN hash(i, 1) % 99 + 8 * (hash(i, 6) % 16) + hash(i, 13) % 60 > 140 THEN '>50K' ELSE '<=50K' END AS {LABEL}
    FROM range(?) AS numbers(i)"""
BACK = f"SELECT i AS id, 'class ' || i % 2 AS {LABEL}, i / 7.0 AS probability FROM range(?) AS numbers(i)"
BY_RECORD = '''
import types

import tensorflow as tf


def feed(dataset, mode, metadata):
    """Apply the same layers to one record after another."""
    of_rows = table.feed(types.SimpleNamespace(map=lambda function: function), mode, metadata)

    def parse(record):
        return tf.nest.map_structure(lambda rows: rows[0], of_rows({name: value[None] for name, value in record.items()}))

    return dataset.map(parse)
'''
"""Takes the place of a model file's `feed`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        rows: of the table in DuckDB.
        given: rows of PostgreSQL's table, and those that come back.
        rounds: turns of all sides.
        derived: rows of which a model is derived, and on which feeds and jobs run; nine tenths are trained on.
        passes: of feeds over some of them.
        workers: of jobs.
        batch: of jobs.
    """

    rows: int = 10_000_000
    given: int = 1_000_000
    rounds: int = 3
    derived: int = 80_000
    passes: int = 5
    workers: int = 2
    batch: int = BATCH


FULL = Sizes()
SMALLEST = Sizes(rows=2000, given=500, rounds=1, derived=640, passes=1, workers=1, batch=32)


@dataclass(frozen=True, slots=True)
class Missing(Row):
    """What could not be measured here."""

    @property
    def verdict(self) -> str:
        """Return the word for it."""
        return "missing"

    @property
    def bars(self) -> list[Bar]:
        """None."""
        return []


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a side, and seconds of processors in them; medians."""

    seconds: float
    effort: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.effort:.2f} s of processors)"


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything. Raises RuntimeError if a process fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        found = [*snapshots(directory, sizes), *postgresql(directory, sizes)]
        taken = derived(directory, sizes)
        command = [sys.executable, "-m", "benchmarks.sql", folder, str(sizes.passes)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
        if run.returncode:
            raise RuntimeError(f"the feeds failed:\n{run.stderr[-4000:]}")
        feeds = [Row(**one) for one in json.loads(run.stdout.splitlines()[-1])]
        return [*found, *feeds, jobs(directory, taken, sizes)]


def took(sides: dict[str, Callable[[Path], object]], directory: Path, rounds: int) -> dict[str, Took]:
    """Return what sides take that work in this process, each in a new directory, in turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            room = Path(tempfile.mkdtemp(prefix="turn-", dir=directory))
            began, busy = time.perf_counter(), time.process_time()
            side(room)
            times[name].append((time.perf_counter() - began, time.process_time() - busy))
            shutil.rmtree(room)
    return {name: Took(*map(statistics.median, zip(*found, strict=True))) for name, found in times.items()}


# ------------------------------------------------------------------ DuckDB


def snapshots(directory: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on a table of DuckDB: its snapshot and its statistics, beside COPY."""
    import duckdb

    from elasticdl.query import snapshot
    from elasticdl.query.source import open_source
    from elasticdl.tabular import statistics as counting

    file = directory / "people.duckdb"
    with closing(duckdb.connect(str(file))) as database:
        database.execute(f"CREATE TABLE people AS {PEOPLE}", [sizes.rows])
    kept = directory / "kept"

    def ours(room: Path) -> None:
        with closing(open_source(f"duckdb:///{file}")) as source:
            found = snapshot.take(
                source, "SELECT * FROM people", directory=room / "rows", seed=0, label=LABEL
            )
        shutil.rmtree(kept, ignore_errors=True)
        found.training.rename(kept)

    def copy(room: Path) -> None:
        with closing(duckdb.connect(str(file), read_only=True)) as database:
            database.execute(f"COPY (SELECT * FROM people) TO '{room}/people.parquet' (FORMAT parquet)")

    def counted(room: Path) -> None:
        counting.of(sorted(kept.glob("*.parquet")))

    found = took({"copy": copy, "ours": ours, "counted": counted}, directory, sizes.rounds)
    shutil.rmtree(kept)
    peer = found["copy"]
    what = f"{sizes.rows:,} rows of 14 columns"
    return [
        Row(f"{what}: {name}", str(one), f"COPY {peer}", one.seconds / peer.seconds, must, aim)
        for name, one, must, aim in (
            ("snapshot", found["ours"], 6.25, 4.25),
            ("statistics", found["counted"], 2.5, 1.65),
        )
    ]


# ------------------------------------------------------------------ PostgreSQL


def postgresql(directory: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on a server of PostgreSQL, beside ADBC alone."""
    names = (
        f"PostgreSQL: {sizes.given:,} rows of 14 columns to raw parts",
        f"PostgreSQL: {sizes.given:,} rows of 3 columns back",
    )
    is_there = shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not is_there or importlib.util.find_spec("adbc_driver_postgresql") is None:
        print("not measured beside ADBC: there is no PostgreSQL here: make setup-databases", file=sys.stderr)
        return [Missing(name, "not measured", "PostgreSQL is missing", math.nan, 0.7, 0.9) for name in names]
    from adbc_driver_postgresql import dbapi

    from elasticdl.query.source import open_source
    from tests.data.test_postgresql import PASSWORD, Server

    os.environ["PGPASSWORD"] = PASSWORD
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:  # into which the server's user can look
        server = Server(Path(folder))
        server.make()
        server.start()
        try:
            with closing(dbapi.connect(server.table().url)) as database:
                ingested(database, "people", made(PEOPLE, sizes.given))
            with closing(open_source(server.table().url)) as source:
                found = took(reading(server.table().url, source), directory, sizes.rounds)
                found |= took(
                    writing(server.table().url, source, made(BACK, sizes.given)), directory, sizes.rounds
                )
        finally:
            server.stop()
    return [
        Row(name, str(found[ours]), f"ADBC {found[peer]}", found[peer].seconds / found[ours].seconds, 0.7, 0.9)
        for name, ours, peer in zip(names, ("parts", "back"), ("batches", "ingested"), strict=True)
    ]  # fmt: skip


def made(query: str, rows: int) -> Any:
    """Return the table that a query of DuckDB makes of so many numbers."""
    import duckdb

    with duckdb.connect() as database:
        return database.sql(query, params=[rows]).to_arrow_table()


def ingested(database: Any, name: str, rows: Any) -> None:
    """Write a table of PostgreSQL by ADBC alone."""
    with database.cursor() as cursor:
        cursor.adbc_ingest(name, rows, mode="create")
    database.commit()


def reading(url: str, source: Any) -> dict[str, Callable[[Path], object]]:
    """Return the sides that read a table."""
    from adbc_driver_postgresql import dbapi

    from elasticdl.query.parts import streamed

    select = "SELECT * FROM people"

    def batches(room: Path) -> int:
        with closing(dbapi.connect(url)) as database, database.cursor() as cursor:
            cursor.execute(select)
            return sum(batch.num_rows for batch in cursor.fetch_record_batch())

    return {"batches": batches, "parts": lambda room: streamed(source.rows(select), room)}


def writing(url: str, source: Any, rows: Any) -> dict[str, Callable[[Path], object]]:
    """Return the sides that write a table, a new one at each turn."""
    from adbc_driver_postgresql import dbapi

    from elasticdl.query.source import ROWS, Into

    def ingest(room: Path) -> None:
        with closing(dbapi.connect(url)) as database:
            ingested(database, room.name, rows)

    def back(room: Path) -> None:
        source.write(room.name, iter(rows.to_batches(ROWS)), Into.NEW, "a benchmark")

    return {"ingested": ingest, "back": back}


# ------------------------------------------------------------------ feeds and jobs


def derived(directory: Path, sizes: Sizes) -> Any:
    """Write a model zoo of one model with two model files, `model.py` and `record.py`; return the snapshot that it is of."""
    import duckdb

    from elasticdl.query import snapshot
    from elasticdl.query.source import open_source
    from elasticdl.tabular import plan, template
    from elasticdl.tabular import statistics as counting

    with duckdb.connect() as database, closing(open_source(database)) as source:
        taken = snapshot.take(
            source, PEOPLE.replace("?", str(sizes.derived)), directory=directory / "rows", seed=0, label=LABEL
        )
    counted = counting.of(sorted(taken.training.glob("*.parquet")))
    zoo = directory / "zoo"
    zoo.mkdir()
    template.write(zoo, plan.derive(taken.schema, counted, LABEL, rows=taken.training_rows))
    (zoo / "record.py").write_text(template.TEXT + BY_RECORD)
    return taken


class Feed:
    """One pass of a feed over chunks, at each call."""

    def __init__(self, feed: Any, chunks: list[Any]) -> None:
        """`chunks`: as a reader gives them."""
        from elasticdl.keras.feed import FeedPipeline

        self._pipeline = FeedPipeline(feed, "training", None, Path(__file__))
        self._chunks = chunks

    def __call__(self) -> int:
        """Return how many records there were."""
        return sum(self._pipeline(chunk).examples for chunk in self._chunks)


def feeds(directory: Path, passes: int) -> list[Row]:
    """Measure the feeds of both model files on the same chunks, after one pass that warms up."""
    from elasticdl.keras import runtime

    runtime.start(len(os.sched_getaffinity(0)))
    whole, single = (feed_of(directory / "zoo" / name) for name in ("model.py", "record.py"))
    found = []
    for size, must, aim in CHUNKS:
        chunks = chunks_of(directory / "rows" / "training", directory, size)
        mine, other = turns([Feed(whole, chunks), Feed(single, chunks)], passes)
        found.append(
            compared(f"feed of a derived model, {size} rows", mine, f"by records {other}", other, must, aim)
        )
    return found


def chunks_of(training: Path, directory: Path, size: int) -> list[Any]:
    """Return chunks of so many rows, as a worker reads them; `directory`: for indexes."""
    from elasticdl.data.plan.shard import Task
    from elasticdl.data.readers.reader import shards_of
    from elasticdl.data.readers.recordfiles import open_reader

    reader = open_reader(str(training), {}, directory)
    found: list[Any] = []
    for shard in shards_of(reader):
        end = shard.start + shard.count
        for start in range(shard.start, end, size):
            task = Task(0, 0, shard, start, min(start + size, end))
            found.append(reader.read(task, range(task.start, task.end)))
            if len(found) * size >= FED:
                return found
    return found


def feed_of(path: Path) -> Any:
    """Return the feed of a model file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.feed


def jobs(directory: Path, taken: Any, sizes: Sizes) -> Row:
    """Return the row on whole jobs with both feeds."""
    rates: dict[str, list[float]] = {"model": [], "record": []}
    efforts: dict[str, list[float]] = {"model": [], "record": []}
    for turn in range(sizes.rounds):
        for name, found in rates.items():
            rate, effort = train(directory, taken, f"{name}-{turn}", sizes)
            found.append(rate)
            efforts[name].append(effort)
    ours, peer = (statistics.median(found) for found in rates.values())
    mine, other = (statistics.median(found) for found in efforts.values())
    return Row(
        f"job of a derived model, {sizes.workers} workers, {sizes.batch} rows each",
        f"{ours:,.0f} records/s ({mine:.0f} s of processors with the start)",
        f"by records {peer:,.0f} records/s ({other:.0f} s of processors)",
        ours / peer, 3, 3.4,
    )  # fmt: skip


def train(directory: Path, taken: Any, name: str, sizes: Sizes) -> tuple[float, float]:
    """Run a job with the model file before the dash; return its records per second, and the seconds of processors of its processes."""
    summary = directory / f"{name}.json"
    settings = {
        "model_zoo": directory / "zoo",
        "model_def": f"{name.partition('-')[0]}.custom_model",
        "training_data": taken.training,
        "validation_data": taken.validation,
        "num_workers": sizes.workers,
        "minibatch_size": sizes.batch,
        "num_epochs": 1,
        "job_name": f"bench-sql-{name}",
        "summary": summary,
    }
    command = [ELASTICDL, "train", *(f"--{key}={value}" for key, value in settings.items())]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"the job failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    rate = json.loads(summary.read_text())["records_per_second"]
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (math.nan if rate is None else float(rate)), busy  # too short a job has no rate


def main() -> None:
    """Measure the feeds, and print their rows as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("passes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps([dataclasses.asdict(row) for row in feeds(options.folder, options.passes)]))


if __name__ == "__main__":
    main()
