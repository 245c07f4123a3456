"""Custom training loops in PyTorch: the same loop plain, under DistributedDataParallel, and as a worker of a job; medians, in turns.

Run it alone: `python -m benchmarks loops`. Needs PyTorch (`make setup-torch`). All processes are on this host and compute with one thread.
The peer of two workers is torchrun with Gloo.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recorded import Bar, bar, judge

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "benchmarks/models/torch_loop.py")
PATIENCE = 300.0
"""Seconds before a measurement that hangs is given up."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: turns of all forms, and steps of each model; 0: the small one is taken for it."""

    rounds: int
    small: int
    large: int
    images: int


FULL = Sizes(rounds=5, small=1500, large=60, images=60)
SMALLEST = Sizes(rounds=1, small=5, large=0, images=0)


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds, and seconds of one processor, of a step."""

    step: float
    processor: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a claim, its figure, what it must be, and what it is made of."""

    what: str
    figure: float
    form: str
    must: float
    aim: float
    ours: Turn
    peer: Turn

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `short`; ratios are to be high, added milliseconds low."""
        return judge(self.figure, self.must, self.aim)

    @property
    def bars(self) -> list[Bar]:
        """The figure for a picture."""
        shown = f"{self.figure:.2f} {self.form}"
        return [bar(self.what, self.figure, shown, self.verdict, self.must, self.aim)]


def commands(size: str, steps: int, out: str) -> dict[str, list[str]]:
    """Return the commands of all forms in which a model is measured."""
    arguments = [size, str(steps), out]
    job = [sys.executable, "-m", "elasticdl", "run", "--threads_per_worker=1", "--stall_seconds=600"]
    alone = {
        "plain": [sys.executable, PROGRAM, "plain", *arguments],
        "one worker": [*job, "--num_workers=1", "--", sys.executable, PROGRAM, "job", *arguments],
    }
    if size == "images":
        return alone
    return alone | {
        "two workers": [*job, "--num_workers=2:2", "--", sys.executable, PROGRAM, "job", *arguments],
        "torchrun": [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", PROGRAM, "ddp", *arguments
        ],
    }  # fmt: skip


def measure(command: list[str], out: Path, folder: str, **more: str) -> Turn:
    """Run one form, which writes its figures to `out`; `more`: of its environment. Raises RuntimeError if it fails or hangs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": folder, **more}
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} took more than {PATIENCE:g} s") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = Turn(*json.loads(out.read_text()))
    out.unlink()
    return found


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure all forms with both models, in turns. Raises RuntimeError if a process fails, or PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError("PyTorch is not installed; `make setup-torch` installs it")
    found: dict[tuple[str, str], list[Turn]] = {}
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        out = Path(folder) / "out.json"
        for _ in range(sizes.rounds):
            for size, steps in (("small", sizes.small), ("large", sizes.large), ("images", sizes.images)):
                if not steps:
                    continue
                for form, command in commands(size, steps, str(out)).items():
                    found.setdefault((size, form), []).append(measure(command, out, folder))

    def of(size: str, form: str) -> Turn:
        turns = found[size if (size, form) in found else "small", form]
        return Turn(
            *(
                statistics.median(values)
                for values in zip(*((one.step, one.processor) for one in turns), strict=True)
            )
        )

    def added(size: str, form: str, less: str) -> float:
        """Return milliseconds."""
        return 1e3 * (of(size, form).step - of(size, less).step)

    def ratio(size: str, form: str, peer: str) -> float:
        return of(size, peer).step / of(size, form).step

    return [
        Row("one worker, 5.3 M parameters, beside the plain loop", ratio("large", "one worker", "plain"), "x", 0.97, 1.0,
            of("large", "one worker"), of("large", "plain")),
        Row("one worker, a convolutional model, beside the plain loop", ratio("images", "one worker", "plain"), "x", 0.97, 1.0,
            of("images", "one worker"), of("images", "plain")),
        Row("one worker, a small step: added", added("small", "one worker", "plain"), "ms", 0.5, 0.3,
            of("small", "one worker"), of("small", "plain")),
        Row("a second worker there: added", added("small", "two workers", "one worker"), "ms", 1.5, 1.0,
            of("small", "two workers"), of("small", "torchrun")),
        Row("two workers, 5.3 M parameters, beside torchrun and Gloo", ratio("large", "two workers", "torchrun"), "x", 1.0, 1.2,
            of("large", "two workers"), of("large", "torchrun")),
    ]  # fmt: skip


def table(found: list[Row]) -> str:
    """Return the rows as text."""
    lines = [
        "custom training loops, one host, one thread each; ms of a step (ms of a processor)",
        f"{'what':<58} {'figure':>9} {'must':>6} {'aim':>6} {'ours':>16} {'peer':>16}  verdict",
    ]
    for row in found:
        sides = (f"{1e3 * one.step:.2f} ({1e3 * one.processor:.2f})" for one in (row.ours, row.peer))
        ours, peer = sides
        lines.append(
            f"{row.what:<58} {row.figure:>6.2f} {row.form:<2} {row.must:>6} {row.aim:>6} {ours:>16} {peer:>16}  {row.verdict}"
        )
    return "\n".join(lines)
