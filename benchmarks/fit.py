"""One worker against plain `model.fit`: the same model file, the same TFRecord file, medians.

Run it alone: `python benchmarks/fit.py`. Ours is what one worker does with its data and its model: reading by index, `feed`, gradient,
a copy in the ring's place, commit, one chunk after the other; the group's part is measured by the other benchmarks. The peer reads the
same file with `tf.data`, parses it with the same `feed`, and prefetches. Each turn is a process of its own, because the number of threads
is fixed in a process; the two take turns, so that both see the same weather on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from benchmarks.recorded import Bar, bar, judge

ROOT = Path(__file__).resolve().parent.parent
MODEL = "mnist.mnist_functional_api.custom_model"
PATIENCE = 580.0
"""Seconds before a measurement that hangs is given up."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: records of a batch, and `jit_compile` as given to both sides."""

    batch: int
    jit: str
    must: float = 0.95
    aim: float = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        cases: what.
        rounds: turns of both sides for each case.
        records: of the file.
        passes: timed ones over the records in each process, after one that warms up.
    """

    cases: tuple[Case, ...]
    rounds: int = 3
    records: int = 4096
    passes: int = 3


CASES = tuple(Case(batch, jit) for batch, jit in itertools.product((64, 256), ("auto", "off")))
FULL = Sizes(CASES)
SMALLEST = Sizes((Case(64, "off"),), rounds=1, records=128, passes=1)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; seconds of one step."""

    case: Case
    ours: float
    fit: float

    @property
    def ratio(self) -> float:
        """Our throughput as a part of the peer's."""
        return self.fit / self.ours

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `short`."""
        return judge(self.ratio, self.case.must, self.case.aim)

    @property
    def bars(self) -> list[Bar]:
        """The ratio for a picture."""
        what = f"one worker beside model.fit, batch {self.case.batch}, jit_compile {self.case.jit}"
        return [bar(what, self.ratio, f"{self.ratio:.2f}×", self.verdict, self.case.must, self.case.aim)]


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure all cases, in turns with `model.fit`; return one row each. Raises RuntimeError if a process fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        write_records(Path(folder) / "images.tfrecord", sizes.records)
        found = []
        for case in sizes.cases:
            passes: dict[str, list[Pass]] = {"ours": [], "fit": []}
            for _ in range(sizes.rounds):
                for side, measured in passes.items():
                    measured += measure(side, case, sizes.passes, folder)
            found.append(
                Row(case, *(statistics.median(one.step for one in side) for side in passes.values()))
            )
    return found


def write_records(path: Path, records: int) -> None:
    """Write random images: how long a step takes does not depend on what they show."""
    import numpy as np

    from elasticdl.data.readers.writing import encode_example, write_tfrecord

    images = np.random.default_rng(0).integers(0, 256, (records, 784), np.uint8)
    write_tfrecord(
        path, (encode_example({"image": image.tobytes(), "label": i % 10}) for i, image in enumerate(images))
    )


def measure(side: str, case: Case, passes: int, folder: str) -> list[Pass]:
    """Run one process of one side; return its passes."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.fit",
        "--side",
        side,
        "--batch",
        str(case.batch),
        "--jit",
        case.jit,
        "--passes",
        str(passes),
        "--folder",
        folder,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{side} took more than {PATIENCE:g} s: {error.stderr!r}") from None
    if done.returncode:
        raise RuntimeError(f"{side} failed:\n{done.stderr}")
    return [Pass(*seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]


def spec(case: Case, folder: Path) -> Any:
    """Return the job's settings."""
    from elasticdl.spec.jobspec import JitCompile, JobSpec

    return JobSpec(
        model_zoo=str(ROOT / "model_zoo"),
        model_def=MODEL,
        training_data=str(folder / "images.tfrecord"),
        minibatch_size=case.batch,
        jit_compile=JitCompile(case.jit),
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over the records: seconds of a step, and those of them for which it waits for its data."""

    step: float
    waits: float


def ours(case: Case, passes: int, folder: Path) -> list[Pass]:
    """Time passes of one worker's data and model."""
    from elasticdl.keras import runtime

    runtime.start(len(os.sched_getaffinity(0)))
    import numpy as np

    from elasticdl.data.plan.ledger import Ledger
    from elasticdl.data.prefetch import ChunkSource
    from elasticdl.data.readers.reader import shards_of
    from elasticdl.data.readers.recordfiles import open_reader
    from elasticdl.keras.adapter import KerasAdapter
    from elasticdl.keras.framework import FRAMEWORK
    from elasticdl.worker.finite import all_finite

    settings = spec(case, folder)
    reader = open_reader(settings.training_data, {}, folder / "index")
    per_task = case.batch * settings.num_minibatches_per_task
    ledger = Ledger(shards_of(reader), per_task, case.batch, settings.seed, settings.shuffle)
    adapter = KerasAdapter(FRAMEWORK.load(settings), settings, reader.metadata)
    first = ledger.task(0, 0)
    adapter.prepare(reader.read(first, ledger.chunk(first, 0).tolist()))
    chunks = ChunkSource(reader, ledger, adapter.convert, 4)
    result = np.zeros(adapter.size, adapter.dtype)
    step = 0
    times = []
    for epoch in range(passes + 1):
        keys = list(chunk_keys(ledger, epoch))
        waited, began = 0.0, time.perf_counter()
        for place, key in enumerate(keys):
            chunks.want(keys[place : place + 5])
            step += 1
            asked = time.perf_counter()
            _, _, batch = chunks.get(key)
            waited += time.perf_counter() - asked
            examples = adapter.compute(batch, step, 0).examples
            result[:] = np.asarray(adapter.accumulator())
            if not all_finite(result):
                raise RuntimeError(f"step {step} is not finite")
            adapter.apply(result, examples)
        times.append(Pass((time.perf_counter() - began) / len(keys), waited / len(keys)))
    chunks.close()
    return times[1:]


def chunk_keys(ledger: Any, epoch: int) -> Iterator[tuple[int, int, int]]:
    """Yield the names of an epoch's chunks in order."""
    for place in range(ledger.num_tasks):
        task = ledger.task(epoch, place)
        for chunk in range(ledger.num_chunks(task)):
            yield epoch, task.id, chunk


def fit(case: Case, passes: int, folder: Path) -> list[Pass]:
    """Time epochs of `model.fit`, as a plain script would write it."""
    import tensorflow as tf

    from elasticdl.keras.framework import FRAMEWORK

    user = FRAMEWORK.load(spec(case, folder))
    jit: Any = {"auto": "auto", "on": True, "off": False}[case.jit]
    model = user.model()
    model.compile(user.optimizer(), user.loss, jit_compile=jit)
    records = tf.data.TFRecordDataset(str(folder / "images.tfrecord")).batch(case.batch)
    dataset = user.feed(records, "training", None).prefetch(tf.data.AUTOTUNE)
    steps = sum(1 for _ in dataset)
    times = []
    for _ in range(passes + 1):
        began = time.perf_counter()
        model.fit(dataset, verbose=0)
        times.append(Pass((time.perf_counter() - began) / steps, 0.0))  # Keras does not say what it waits for
    return times[1:]


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| one worker, mnist functional | ours | model.fit | ratio | must / aim |", "| --- " * 5 + "|"]
    for row in found:
        case = row.case
        lines.append(
            f"| batch {case.batch}, jit_compile {case.jit} | {row.ours * 1e3:.2f} ms a step | {row.fit * 1e3:.2f} ms "
            f"| {row.ratio:.2f} ({row.verdict}) | {case.must:g} / {case.aim:g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or be one side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", choices=("ours", "fit"), help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--passes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--jit", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side = ours if args.side == "ours" else fit
        print(
            json.dumps([astuple(one) for one in side(Case(args.batch, args.jit), args.passes, args.folder)])
        )
    else:
        print(table(rows()))
        print(
            f"\n{len(os.sched_getaffinity(0))} cores; medians of {FULL.rounds} turns of {FULL.passes} passes each"
        )


if __name__ == "__main__":
    main()
