"""What input costs: `feed` by records beside whole chunks, each reader beside tf.data on the same file, and what a step waits for its data.

Run it alone: `python -m benchmarks inputs`. Ours is what a worker does with its data: records in the order of the ledger, shuffled, one
chunk read while the one before it is converted. The peer, tf.data, reads the same file from its begin to its end with as many threads as it
likes, and parses the same batches with the same `feed`. All sides are in one process and take turns, so that they see the same weather on
the machine; beside their records per second stands the time of processors that a record takes, all threads together.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import fit
from benchmarks.servers import ROOT, Row, make_flights
from benchmarks.servers import table as table

BATCH = 256
AHEAD = 4
PATIENCE = 580.0
SIDE = 64
"""Pixels of an image."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        digits: records of the TFRecord file, one batch at least.
        flights: rows of the CSV and Parquet files, nine tenths of them.
        images: files.
        rounds: turns of all sides, after one that warms up.
        passes: over the digits, with a model, after one that warms up.
        batch: of the steps of that model.
    """

    digits: int = 20_000
    flights: int = 40_000
    images: int = 2_000
    rounds: int = 5
    passes: int = 2
    batch: int = 64


FULL = Sizes()
SMALLEST = Sizes(digits=64, flights=64, images=4, rounds=1, passes=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a side is: records per second, and seconds of processors for a record."""

    rate: float
    effort: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} records/s ({1e6 * self.effort:.1f} µs of processors each)"


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure everything. Raises RuntimeError if a process fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        write_data(Path(folder), sizes)
        command = [sys.executable, "-m", "benchmarks.inputs", folder, str(sizes.rounds)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
        if run.returncode:
            raise RuntimeError(f"the sides failed:\n{run.stderr[-4000:]}")
        found = [Row(**one) for one in json.loads(run.stdout.splitlines()[-1])]
        passes = fit.measure("ours", fit.Case(sizes.batch, "auto"), sizes.passes, folder)
    step, waits = (
        statistics.median(values) for values in zip(*map(dataclasses.astuple, passes), strict=True)
    )
    return [
        *found,
        Row(
            f"wait for data, digits, batch {sizes.batch}",
            f"{1e3 * waits:.2f} ms", f"a step of {1e3 * step:.1f} ms", 100 * waits / step, 2, 1, " %",
        ),
    ]  # fmt: skip


def write_data(folder: Path, sizes: Sizes) -> None:
    """Write the files that all sides read: digits, flights and images, and the first two also compressed."""
    import pyarrow.csv
    import pyarrow.parquet
    from PIL import Image

    fit.write_records(folder / "images.tfrecord", sizes.digits)
    shutil.copy(make_flights(folder, sizes.flights), folder / "flights.csv")
    pyarrow.parquet.write_table(
        pyarrow.csv.read_csv(folder / "flights.csv"), folder / "flights.parquet", row_group_size=10_000
    )
    for name in ("images.tfrecord", "flights.csv"):
        with (folder / name).open("rb") as file, gzip.open(folder / f"{name}.gz", "wb", 6) as packed:
            shutil.copyfileobj(file, packed)
    draw = np.random.default_rng(0)
    for number in range(sizes.images):
        path = folder / "pictures" / f"class{number % 2}" / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        smooth = np.kron(draw.integers(0, 256, (SIDE // 8, SIDE // 8), np.uint8), np.ones((8, 8), np.uint8))
        Image.fromarray(smooth).save(path)


# ------------------------------------------------------------------ the sides, in a process of their own


class Ours:
    """One pass of a worker over its data, at each call: every record of an epoch, converted."""

    def __init__(self, data: Path, feed: Any, folder: Path) -> None:
        """`folder`: for indexes."""
        from elasticdl.data.plan.ledger import Ledger
        from elasticdl.data.prefetch import ChunkSource
        from elasticdl.data.readers.reader import shards_of
        from elasticdl.data.readers.recordfiles import open_reader
        from elasticdl.keras.feed import FeedPipeline

        per_task = 8 * BATCH
        reader = open_reader(str(data), {}, folder, records_per_task=per_task)
        pipeline = FeedPipeline(feed, "training", reader.metadata, Path(__file__))
        self._ledger = Ledger(shards_of(reader), max(per_task, reader.block), BATCH, 0, shuffle=True)
        self._chunks = ChunkSource(reader, self._ledger, pipeline, AHEAD)
        self._epochs = itertools.count()

    def __call__(self) -> int:
        """Return how many records there were."""
        keys = list(fit.chunk_keys(self._ledger, next(self._epochs)))
        count = 0
        for place, key in enumerate(keys):
            self._chunks.want(keys[place : place + AHEAD + 1])
            count += self._chunks.get(key)[2].examples
        return count


class Peer:
    """One pass of tf.data over the same batches."""

    def __init__(self, batches: Any) -> None:
        import tensorflow as tf

        self._batches = batches.prefetch(tf.data.AUTOTUNE)

    def __call__(self) -> int:
        """Return how many records there were."""
        return sum(len(labels) for _, labels in self._batches)


def measured(folder: Path, rounds: int) -> list[Row]:
    """Measure forms of `feed`, and readers."""
    from elasticdl.keras import runtime

    runtime.start(len(os.sched_getaffinity(0)))
    from benchmarks.models import feeds

    places = itertools.count()

    def ours(name: str, feed: Any) -> Ours:
        own = folder / f"indexes-{next(places)}"
        own.mkdir()
        return Ours(folder / name, feed, own)

    forms = {
        # Here half of the time is that of the file and of the pixels, which both forms have.
        "TFRecord, digits": ("images.tfrecord", feeds.digits, feeds.digits_whole, 1.3, 1.5),
        "CSV, flights": ("flights.csv", feeds.rows, feeds.whole(feeds.rows), 1.5, 2.0),
        "Parquet, flights": ("flights.parquet", feeds.columns, feeds.whole(feeds.columns), 1.5, 2.0),
    }
    found = []
    for what, (name, by_record, whole, must, aim) in forms.items():
        mine, other = turns([ours(name, whole), ours(name, by_record)], rounds)
        found.append(compared(f"feed of whole chunks: {what}", mine, f"by records {other}", other, must, aim))
    for what, (name, feed, batches) in readers(folder).items():
        mine, other = turns([ours(name, feed), Peer(batches)], rounds)
        found.append(compared(f"reader: {what}", mine, f"tf.data {other}", other, 1, 1.5))
    return found


def readers(folder: Path) -> dict[str, tuple[str, Any, Any]]:
    """Return by the kind of file: its name, the feed of both sides, and the examples of tf.data in batches."""
    import tensorflow as tf

    from benchmarks.models import feeds

    with (folder / "flights.csv").open(encoding="utf-8") as file:
        names = file.readline().rstrip().split(",")
    flights = SimpleNamespace(column_names=names)
    rows_of, columns_of = feeds.whole(feeds.rows), feeds.whole(feeds.columns)

    def records(name: str, packed: str | None = None) -> Any:
        batches = tf.data.TFRecordDataset(str(folder / name), packed).batch(BATCH)
        return feeds.digits_whole(batches, "training", None)

    def lines(name: str, packed: str | None = None) -> Any:
        texts = [tf.constant([""])[0]] * len(names)
        fields = tf.data.experimental.CsvDataset(str(folder / name), texts, packed, header=True)
        batches = fields.batch(BATCH).map(lambda *columns: tf.stack(columns, axis=1))
        return rows_of(batches, "training", flights)

    pictures = sorted(map(str, (folder / "pictures").glob("*/*.png")))
    labels = np.array([int(Path(path).parent.name[-1]) for path in pictures], np.int64)
    files = tf.data.Dataset.from_tensor_slices((pictures, labels)).map(
        lambda path, label: {"image": tf.io.read_file(path), "label": label}
    )
    return {
        "TFRecord": ("images.tfrecord", feeds.digits_whole, records("images.tfrecord")),
        "TFRecord.gz": ("images.tfrecord.gz", feeds.digits_whole, records("images.tfrecord.gz", "GZIP")),
        "CSV": ("flights.csv", rows_of, lines("flights.csv")),
        "CSV.gz": ("flights.csv.gz", rows_of, lines("flights.csv.gz", "GZIP")),
        "Parquet, tf.data by pyarrow": (
            "flights.parquet",
            columns_of,
            columns_of(parquet(folder / "flights.parquet"), "training", flights),
        ),
        "images (PNG)": ("pictures", feeds.images, feeds.images(files, "training", None).batch(BATCH)),
    }


def parquet(path: Path) -> Any:
    """Return the columns of a Parquet file in batches, as one would give them to tf.data, which does not read such files."""
    import pyarrow.parquet
    import tensorflow as tf

    def batches() -> Iterable[dict[str, Any]]:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                yield {
                    name: column.to_numpy(zero_copy_only=False)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }

    types = {
        field.name: tf.string if str(field.type) == "string" else field.type.to_pandas_dtype()
        for field in pyarrow.parquet.read_schema(path)
    }
    signature = {name: tf.TensorSpec([None], kind) for name, kind in types.items()}
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def turns(sides: list[Callable[[], int]], rounds: int) -> list[Pace]:
    """Return the sides' paces, medians of turns after one that warms up. Raises RuntimeError if they see other numbers of records."""
    rates: list[list[float]] = [[] for _ in sides]
    efforts: list[list[float]] = [[] for _ in sides]
    counts = set()
    for turn in range(rounds + 1):
        for number, side in enumerate(sides):
            began, busy = time.perf_counter(), time.process_time()
            count = side()
            counts.add(count)
            if turn:
                rates[number].append(count / (time.perf_counter() - began))
                efforts[number].append((time.process_time() - busy) / count)
    if len(counts) > 1:
        raise RuntimeError(f"the sides have seen {' and '.join(map(str, sorted(counts)))} records")
    return [Pace(*map(statistics.median, pair)) for pair in zip(rates, efforts, strict=True)]


def compared(what: str, ours: Pace, beside: str, other: Pace, must: float, aim: float) -> Row:
    """Return the row of two sides."""
    return Row(what, str(ours), beside, ours.rate / other.rate, must, aim)


def main() -> None:
    """Measure the sides, and print their rows as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps([dataclasses.asdict(row) for row in measured(options.folder, options.rounds)]))


if __name__ == "__main__":
    main()
