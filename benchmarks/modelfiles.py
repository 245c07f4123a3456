"""One worker with a model file in JAX and in MXNet, beside the framework's own loop over the same data; medians, in turns.

Run it alone: `python -m benchmarks modelfiles`. Needs JAX (`make setup-jax`), and the environment for MXNet (`make setup-mxnet`). All
processes compute with one thread. The plain loop has its data in memory; the worker reads a file, ahead of the step.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.loops import ROOT, Turn, measure
from benchmarks.recorded import Bar, bar, judge

MODELS = ROOT / "benchmarks/models"
MXNET = ROOT / ".venv-mxnet/bin/python"
BATCH = 64
MUST, AIM = 0.95, 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: turns of both sides, and records of the file, which each side reads twice."""

    rounds: int
    records: int


FULL = Sizes(rounds=5, records=4096)
SMALLEST = Sizes(rounds=1, records=12 * BATCH)


@dataclass(frozen=True, slots=True)
class Row:
    """One framework; without figures if it is not installed."""

    framework: str
    ours: Turn | None = None
    plain: Turn | None = None

    @property
    def ratio(self) -> float | None:
        """Our steps a second as a part of the plain loop's."""
        return None if self.ours is None or self.plain is None else self.plain.step / self.ours.step

    @property
    def verdict(self) -> str:
        """`aim`, `must`, `short` or `missing`."""
        return "missing" if self.ratio is None else judge(self.ratio, MUST, AIM)

    @property
    def bars(self) -> list[Bar]:
        """The ratio for a picture."""
        ratio = self.ratio
        if ratio is None:
            return []
        what = f"one worker with a model file in {self.framework}, beside a plain loop"
        return [bar(what, ratio, f"{ratio:.2f}×", self.verdict, MUST, AIM)]


def pythons() -> Iterator[tuple[str, str | None]]:
    """Yield each framework, and the Python that has it, if there is one."""
    yield "jax", sys.executable if importlib.util.find_spec("flax") else None
    yield "mxnet", str(MXNET) if MXNET.exists() else None


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure both sides of each framework, in turns. Raises RuntimeError if a process fails or hangs."""
    found = []
    with tempfile.TemporaryDirectory(prefix="edl-") as name:
        folder = Path(name)
        write_data(folder / "rows.parquet", sizes.records)
        for framework, python in pythons():
            turns = [turn_of_each(framework, python, folder) for _ in range(sizes.rounds if python else 0)]
            sides = [_median(list(side)) for side in zip(*turns, strict=True)]
            found.append(Row(framework, *sides))
    return found


def write_data(path: Path, records: int) -> None:
    """Write records of 784 numbers and one of ten classes."""
    import pyarrow as pa
    import pyarrow.parquet

    draw = np.random.default_rng(0)
    numbers = pa.array(draw.standard_normal(784 * records).astype(np.float32))
    labels = draw.integers(0, 10, records).astype(np.int32)
    table = pa.table({"row": pa.FixedSizeListArray.from_arrays(numbers, 784), "label": labels})
    pyarrow.parquet.write_table(table, path, row_group_size=4 * BATCH)


def turn_of_each(framework: str, python: str | None, folder: Path) -> tuple[Turn, Turn]:
    """Run a job of one worker, and the plain loop. Raises RuntimeError if one fails or hangs."""
    data, out = str(folder / "rows.parquet"), folder / "moments.json"
    job = [
        "-m", "elasticdl", "train", f"--model_zoo={MODELS}", f"--model_def=steps_{framework}.custom_model",
        f"--training_data={data}", f"--minibatch_size={BATCH}", "--num_epochs=2", "--num_workers=1",
        "--threads_per_worker=1",
    ]  # fmt: skip
    plain = [str(MODELS / f"steps_{framework}.py"), data, "2"]
    ours, other = (
        measure([str(python), *one], out, str(folder), PYTHONPATH=str(ROOT), MOMENTS=str(out))
        for one in (job, plain)
    )
    return ours, other


def _median(turns: list[Turn]) -> Turn:
    return Turn(
        statistics.median(one.step for one in turns), statistics.median(one.processor for one in turns)
    )


def table(found: list[Row]) -> str:
    """Return the rows as text."""
    lines = [
        "one worker with a model file of 5.3 million parameters, one thread; ms of a step (ms of a processor)",
        f"{'framework':<10} {'ratio':>6} {'must':>6} {'aim':>6} {'ours':>16} {'plain loop':>16}  verdict",
    ]
    for row in found:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        ours, plain = (
            "" if one is None else f"{1e3 * one.step:.2f} ({1e3 * one.processor:.2f})"
            for one in (row.ours, row.plain)
        )
        lines.append(
            f"{row.framework:<10} {ratio:>6} {MUST:>6} {AIM:>6} {ours:>16} {plain:>16}  {row.verdict}"
        )
    return "\n".join(lines)
