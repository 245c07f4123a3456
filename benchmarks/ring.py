"""All-reduce against Gloo: the same tensors, the same processes, one host, medians.

Run it alone: `python benchmarks/ring.py`. Not a microbenchmark of parts: it times whole calls from Python, as a step makes them. Gloo comes
through torch, which is installed in an environment of its own (`.bench/venv`), because nothing else here needs it. The two take turns, so
that both see the same weather on the machine, and the ratio is of medians of all turns.

As a script it is also the process of one rank (`--rank …`), which is why this module imports nothing that one of the environments lacks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GLOO_PYTHON = ROOT / ".bench" / "venv" / "bin" / "python"
KIB = 1024
MIB = 1024 * KIB
GRADIENTS = 100
ROUNDS = 3
PATIENCE = 300.0
"""Seconds before a measurement that hangs is given up."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        name: for people.
        processes: number of ranks, all on this host.
        size: bytes of the whole message.
        pieces: into how many tensors the message falls; ours sends them as one (with the copy into one buffer timed),
            Gloo as that many asynchronous calls, awaited together.
        must: smallest ratio that is accepted; None: shown for information.
        aim: ratio that is wanted.
    """

    name: str
    processes: int
    size: int
    pieces: int = 1
    must: float | None = None
    aim: float | None = None


CASES = (
    Case("64 KiB", 2, 64 * KIB, must=5, aim=9),
    Case("1 MiB", 2, MIB, must=4, aim=8),
    Case("16 MiB", 2, 16 * MIB, must=2, aim=3.6),
    Case("100 MiB", 2, 100 * MIB, must=2, aim=3),
    Case("64 KiB", 4, 64 * KIB, must=15, aim=30),
    Case("1 MiB", 4, MIB, must=15, aim=30),
    Case("100 gradients of 100 KiB", 2, GRADIENTS * 100 * KIB, pieces=GRADIENTS, must=2, aim=5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in seconds."""

    case: Case
    ours: float
    gloo: float
    transport: str

    @property
    def ratio(self) -> float:
        """How many times faster than Gloo."""
        return self.gloo / self.ours

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `short`."""
        if self.case.aim is not None and self.ratio >= self.case.aim:
            return "aim"
        return "must" if self.case.must is None or self.ratio >= self.case.must else "short"


def rows(cases: tuple[Case, ...] = CASES, rounds: int = ROUNDS) -> list[Row]:
    """Measure all cases, in turns with Gloo; return one row each.

    Raises:
        RuntimeError: a rank failed or hung; its output is in the message.
    """
    prepare_gloo()
    found = []
    for case in cases:
        ours: list[float] = []
        gloo: list[float] = []
        transport = ""
        for _ in range(rounds):
            times, transport = measure("ring", sys.executable, case)
            ours += times
            gloo += measure("gloo", str(GLOO_PYTHON), case)[0]
        found.append(Row(case, statistics.median(ours), statistics.median(gloo), transport))
    return found


def prepare_gloo() -> None:
    """Make the environment for Gloo unless it is there."""
    if (
        GLOO_PYTHON.exists()
        and not subprocess.run([GLOO_PYTHON, "-c", "import torch.distributed"], check=False).returncode
    ):
        return
    print("installing torch (for Gloo) in .bench/venv; this is large and happens once", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", GLOO_PYTHON.parent.parent], check=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    install = [uv, "pip", "install", "--python", GLOO_PYTHON] if uv else [GLOO_PYTHON, "-m", "pip", "install"]
    subprocess.run([*install, "-q", "torch", "numpy"], check=True)


def measure(what: str, python: str, case: Case) -> tuple[list[float], str]:
    """Run one turn of a case; return rank 0's times of single operations, and the transport."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [
                    *[
                        python,
                        __file__,
                        "--rank",
                        str(rank),
                        "--what",
                        what,
                        "--processes",
                        str(case.processes),
                    ],
                    *["--size", str(case.size), "--pieces", str(case.pieces), "--folder", folder],
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(case.processes)
        ]
        try:
            outputs = [rank.communicate(timeout=PATIENCE) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{what}: {case.name} did not end within {PATIENCE:.0f} s") from None
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        for rank, (_, errors) in zip(ranks, outputs, strict=True):
            if rank.returncode:
                raise RuntimeError(f"{what}: {case.name} failed:\n{errors}")
        answer = json.loads(outputs[0][0])
        return answer["times"], answer["transport"]


def timed(operation: Callable[[], object], size: int) -> list[float]:
    """Time single operations, after some that warm up caches and connections; as many on every rank."""
    count = max(9, min(300, 256 * MIB // size))
    for _ in range(max(3, count // 10)):
        operation()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return times


def rank_ring(rank: int, processes: int, size: int, pieces: int, folder: Path) -> dict[str, Any]:
    """Be one rank of ours."""
    import numpy as np

    core = importlib.import_module("elasticdl._core")
    names = [f"{other:032x}" for other in range(processes)]
    peers = [(name, f"unix:{folder}/{other}") for other, name in enumerate(names)]
    endpoint = core.Endpoint(peers[rank][1], names[rank], b"a token of the benchmark")
    endpoint.enter(1, 0)
    ring = core.Ring(endpoint, 1, 0, rank, peers, 30.0)
    gradients = [np.full(size // pieces // 4, rank + 1, np.float32) for _ in range(pieces)]
    flat = gradients[0] if pieces == 1 else np.empty(size // 4, np.float32)
    total = np.empty_like(flat)
    step = 0

    def operation() -> None:
        nonlocal step
        step += 1
        if pieces > 1:
            np.concatenate(gradients, out=flat)
        ring.reduce(step, flat, total, [1.0])

    times = timed(operation, size)
    assert total[0] == total[-1] == processes * (processes + 1) / 2
    ring.close(True)
    endpoint.close()
    return {"times": times, "transport": ring.transport}


def rank_gloo(rank: int, processes: int, size: int, pieces: int, folder: Path) -> dict[str, Any]:
    """Be one rank of Gloo."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    tensors = [torch.full((size // pieces // 4,), float(rank + 1)) for _ in range(pieces)]

    def operation() -> None:
        if pieces == 1:
            dist.all_reduce(tensors[0])
        else:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    times = timed(operation, size)
    dist.destroy_process_group()
    return {"times": times, "transport": "tcp"}


def conditions() -> str:
    """Say on what the figures hold."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    system = control.read_text().strip() if control.exists() else "unknown"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, one host; Gloo over TCP loopback with the system's congestion control ({system})"


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| all-reduce, float32 | processes | ours | Gloo | ratio | must / aim | transport |",
        "| --- " * 7 + "|",
    ]
    for row in found:
        case = row.case
        wanted = f"{case.must:g}× / {case.aim:g}×" if case.must and case.aim else "for information"
        lines.append(
            f"| {case.name} | {case.processes} | {row.ours * 1e3:.3f} ms | {row.gloo * 1e3:.3f} ms "
            f"| {row.ratio:.1f}× ({row.verdict}) | {wanted} | {row.transport} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or be one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("rank", "processes", "size", "pieces"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--what", choices=("ring", "gloo"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what:
        run = rank_ring if args.what == "ring" else rank_gloo
        print(json.dumps(run(args.rank, args.processes, args.size, args.pieces, args.folder)))
    else:
        print(table(rows()))
        print(f"\n{conditions()}; medians of {ROUNDS} turns each")


if __name__ == "__main__":
    main()
