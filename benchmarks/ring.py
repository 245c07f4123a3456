"""All-reduce against Gloo, and with TLS against without: the same tensors, the same processes, one host, medians.

Run it alone: `python benchmarks/ring.py`. Not a microbenchmark of parts: it times whole calls from Python, as a step makes them. Gloo comes
through torch, which is installed in an environment of its own (`.bench/venv`, made by `benchmarks/peers`). The two take turns, so
that both see the same weather on the machine, and the ratio is of medians of all turns.

As a script it is also the process of one rank (`--rank …`), which is why this module imports nothing that one of the environments lacks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recorded import Bar, bar, judge

ROOT = Path(__file__).resolve().parent.parent
GLOO_PYTHON = ROOT / ".bench" / "venv" / "bin" / "python"
KIB = 1024
MIB = 1024 * KIB
GRADIENTS = 100
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
        ours: what is measured: `ring` over the transport of one host, or over loopback `tcp` or `tls`.
        peer: what is measured beside it.
    """

    name: str
    processes: int
    size: int
    pieces: int = 1
    must: float | None = None
    aim: float | None = None
    ours: str = "ring"
    peer: str = "gloo"


CASES = (
    Case("64 KiB", 2, 64 * KIB, must=5, aim=9),
    Case("1 MiB", 2, MIB, must=4, aim=8),
    Case("16 MiB", 2, 16 * MIB, must=2, aim=3.6),
    Case("100 MiB", 2, 100 * MIB, must=2.2, aim=3),
    Case("64 KiB", 4, 64 * KIB, must=15, aim=30),
    Case("1 MiB", 4, MIB, must=6, aim=20),
    Case("100 gradients of 100 KiB", 2, GRADIENTS * 100 * KIB, pieces=GRADIENTS, must=2, aim=5),
    Case("64 KiB", 2, 64 * KIB, ours="tls", peer="tcp"),
    Case("1 MiB", 2, MIB, ours="tls", peer="tcp"),
    # At most 1.8 times as long with TLS as without; 1.4 is the aim.
    Case("16 MiB", 2, 16 * MIB, must=0.556, aim=0.714, ours="tls", peer="tcp"),
    Case("16 MiB", 4, 16 * MIB, ours="tls", peer="tcp"),
)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank runs.

    Attributes:
        before: what its command begins with, so that it runs there.
        address: where its endpoint listens; empty: as the transport has it on one host.
        environment: more of it.
    """

    before: tuple[str, ...] = ()
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        cases: what.
        rounds: turns of both sides for each case.
        operations: timed ones of a turn, at most.
        installs: whether a peer that is missing is installed.
    """

    cases: tuple[Case, ...] = CASES
    rounds: int = 3
    operations: int = 300
    installs: bool = True


FULL = Sizes()
SMALLEST = Sizes(
    (
        Case("4 KiB", 2, 4 * KIB, must=5, aim=9),
        Case("2 gradients of 4 KiB", 2, 8 * KIB, pieces=2, must=2, aim=5),
        Case("4 KiB", 2, 4 * KIB, ours="tls", peer="tcp"),
    ),
    rounds=1,
    operations=9,
    installs=False,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in seconds, None of a peer that is missing here."""

    case: Case
    ours: float
    peer: float | None
    transport: str

    @property
    def ratio(self) -> float | None:
        """How many times faster than the peer."""
        return None if self.peer is None else self.peer / self.ours

    @property
    def verdict(self) -> str:
        """`aim`, `must`, `short`, or `missing` if there was nothing to compare with."""
        if self.ratio is None:
            return "missing"
        must, aim = self.case.must, self.case.aim
        return "must" if must is None or aim is None else judge(self.ratio, must, aim)

    @property
    def bars(self) -> list[Bar]:
        """The ratio for a picture, if there are demands on it."""
        case = self.case
        if self.ratio is None or case.must is None or case.aim is None:
            return []
        what = f"all-reduce of {case.name} beside {case.peer}, {case.processes} processes"
        return [bar(what, self.ratio, f"{self.ratio:.1f}×", self.verdict, case.must, case.aim)]


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure all cases, in turns with their peers; return one row each.

    Raises:
        RuntimeError: a rank failed or hung; its output is in the message.
    """
    gloo = prepare("torch.distributed", "torch", installs=sizes.installs)
    found = []
    for case in sizes.cases:
        ours: list[float] = []
        peer: list[float] = []
        transport = ""
        for _ in range(sizes.rounds):
            times, transport = measure(case.ours, case, sizes.operations)
            ours += times
            if case.peer != "gloo" or gloo:
                peer += measure(case.peer, case, sizes.operations)[0]
        found.append(Row(case, statistics.median(ours), statistics.median(peer) if peer else None, transport))
    return found


def prepare(module: str, peer: str, *, installs: bool) -> bool:
    """Make the peers' environment unless it has a module; tell whether it has, and say why if it has not."""
    importing: list[Path | str] = [GLOO_PYTHON, "-c", f"import {module}"]

    def found() -> bool:
        return (
            GLOO_PYTHON.exists()
            and not subprocess.run(importing, check=False, capture_output=True).returncode
        )

    if found():
        return True
    if not installs:
        print(
            f"not measured beside {peer}: it is not installed in {GLOO_PYTHON.parent.parent}", file=sys.stderr
        )
        return False
    print("installing the peers in .bench/venv; this happens once, and takes minutes", file=sys.stderr)
    code = subprocess.run([ROOT / "benchmarks/peers"], check=False, stdout=sys.stderr).returncode
    if found():
        return True
    print(f"not measured beside {peer}: benchmarks/peers ended with {code} and without it", file=sys.stderr)
    return False


def measure(
    what: str, case: Case, operations: int, seats: Sequence[Seat] | None = None
) -> tuple[list[float], str]:
    """Run one turn of a case, with one seat for each rank; return rank 0's times of single operations, and the transport."""
    python = str(GLOO_PYTHON) if what == "gloo" else sys.executable
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        if what == "tls":
            write_identity(Path(folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [
                    *seat.before,
                    *[
                        python,
                        "-m",
                        "benchmarks.ring",
                        "--rank",
                        str(rank),
                        "--what",
                        what,
                        "--processes",
                        str(case.processes),
                    ],
                    *["--size", str(case.size), "--pieces", str(case.pieces), "--folder", folder],
                    *["--operations", str(operations), "--address", seat.address],
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**environment, **seat.environment},
                cwd=ROOT,
            )
            for rank, seat in enumerate(seats or [Seat()] * case.processes)
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


def write_identity(folder: Path) -> None:
    """Write the certificate that the ranks show each other."""
    certificates = importlib.import_module("elasticdl.cluster.kubernetes.certificates")
    roles = importlib.import_module("elasticdl.cluster.cluster").Role
    identity = certificates.make_identities()[roles.WORKER]
    for name, text in (
        ("ca.crt", identity.authority),
        ("tls.crt", identity.certificate),
        ("tls.key", identity.key),
    ):
        (folder / name).write_bytes(text)


def meet(rank: int, processes: int, address: str, folder: Path) -> list[str]:
    """Tell the other ranks one's address through the folder, and return everybody's."""
    draft = folder / f"{rank}.draft"
    draft.write_text(address)
    draft.rename(folder / f"{rank}.address")
    found = [folder / f"{other}.address" for other in range(processes)]
    while not all(path.exists() for path in found):
        time.sleep(0.001)
    return [path.read_text() for path in found]


def timed(operation: Callable[[], object], size: int, most: int) -> list[float]:
    """Time single operations, after some that warm up caches and connections; as many on every rank."""
    count = max(9, min(most, 256 * MIB // size))
    for _ in range(max(3, count // 10)):
        operation()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return times


def rank_ring(
    rank: int, processes: int, size: int, pieces: int, folder: Path, operations: int, what: str, address: str
) -> dict[str, Any]:
    """Be one rank of ours."""
    import numpy as np

    core = importlib.import_module("elasticdl._core")
    identity = (
        importlib.import_module("elasticdl.control.transport.tls").read_identity(folder)
        if what == "tls"
        else None
    )
    names = [f"{other:032x}" for other in range(processes)]
    address = address or (f"unix:{folder}/{rank}" if what == "ring" else "tcp:127.0.0.1:0")
    endpoint = core.Endpoint(address, names[rank], b"a token of the benchmark", identity)
    endpoint.enter(1, 0)
    peers = list(zip(names, meet(rank, processes, endpoint.address, folder), strict=True))
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

    times = timed(operation, size, operations)
    assert total[0] == total[-1] == processes * (processes + 1) / 2
    ring.close(True)
    endpoint.close()
    return {"times": times, "transport": ring.transport}


def rank_gloo(
    rank: int, processes: int, size: int, pieces: int, folder: Path, operations: int
) -> dict[str, Any]:
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

    times = timed(operation, size, operations)
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
        "| all-reduce, float32 | processes | ours | beside it | ratio | must / aim | transport |",
        "| --- " * 7 + "|",
    ]
    for row in found:
        case = row.case
        wanted = f"{case.must:g}× / {case.aim:g}×" if case.must and case.aim else "for information"
        beside, ratio = f"{case.peer} is missing", row.verdict
        if row.peer is not None:
            beside, ratio = f"{case.peer} {row.peer * 1e3:.3f} ms", f"{row.ratio:.1f}× ({row.verdict})"
        lines.append(
            f"| {case.name} | {case.processes} | {row.ours * 1e3:.3f} ms | {beside} | {ratio} | {wanted} | {row.transport} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or be one rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("rank", "processes", "size", "pieces", "operations"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--what", choices=("ring", "tcp", "tls", "gloo"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what:
        place = (args.rank, args.processes, args.size, args.pieces, args.folder, args.operations)
        print(
            json.dumps(
                rank_gloo(*place) if args.what == "gloo" else rank_ring(*place, args.what, args.address)
            )
        )
    else:
        print(table(rows()))
        print(f"\n{conditions()}; medians of {FULL.rounds} turns each")


if __name__ == "__main__":
    main()
