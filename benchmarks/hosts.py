"""All-reduce of two workers on each of several hosts against Gloo: network namespaces with lines of 1 and 10 Gb/s, medians.

Run it alone, with more networks and messages: `python -m benchmarks.hosts` (root). Each host is a network namespace with one line to a
bridge, which a token bucket limits in both directions. There is no delay on the lines: the module that makes it (`netem`) is not in every
kernel. All hosts share the processors of one machine, which bound what is faster than the lines. Ours has TLS between hosts, as every job
has there; Gloo has none. Ranks follow each other host by host, so that Gloo's ring crosses each line once, but for one network where they
do not.

A namespace lives as long as a process that waits for its input to end, so nothing is left behind however this one ends.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ring
from benchmarks.ring import KIB, MIB, Case, Row, Seat

WORKERS = 2
"""On each host."""
BURST = "80kb"
"""Of a token bucket: little more than the largest segment that the kernel hands down."""
QUEUE = "20ms"
"""Before a line; what does not fit is dropped."""


@dataclass(frozen=True, slots=True)
class Network:
    """What joins the hosts.

    Attributes:
        hosts: how many.
        gigabits: of each host's line, in a second and direction.
        scattered: ranks go round the hosts, as in a group whose members came in any order; else they follow each other host by host.
    """

    hosts: int
    gigabits: int
    scattered: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.hosts} hosts, {self.gigabits} Gb/s" + ", ranks in turns" * self.scattered


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        networks: on which.
        messages: names and bytes.
        rounds: turns of both sides for each case.
        operations: timed ones of a turn, at most.
        installs: whether a peer that is missing is installed.
    """

    networks: tuple[Network, ...] = (Network(4, 1), Network(4, 1, scattered=True), Network(4, 10))
    messages: tuple[tuple[str, int], ...] = (("16 MiB", 16 * MIB),)
    rounds: int = 2
    operations: int = 100
    installs: bool = True


FULL = Sizes()
EVERY = Sizes(
    (
        *(Network(hosts, gigabits) for gigabits in (1, 10) for hosts in (2, 4, 8)),
        Network(4, 1, scattered=True),
    ),
    (("64 KiB", 64 * KIB), ("1 MiB", MIB), ("16 MiB", 16 * MIB)),
)
"""What the design note has; it takes some 25 minutes."""
SMALLEST = Sizes((Network(2, 10),), (("64 KiB", 64 * KIB),), rounds=1, operations=9, installs=False)
DEMANDS = {("16 MiB", Network(4, 1)): (1.5, 2.0)}
"""What must be and what is wanted, where anything is."""


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure all messages on all networks, in turns with Gloo; return one row each, or none where there can be no namespaces.

    Raises:
        RuntimeError: a rank failed or hung; its output is in the message.
    """
    if lack():
        return []
    gloo = ring.prepare("torch.distributed", "torch", installs=sizes.installs)
    found = []
    for network in sizes.networks:
        with joined(network) as seats:
            for name, size in sizes.messages:
                must, aim = DEMANDS.get((name, network), (None, None))
                case = Case(
                    f"{name}, {network.name}", WORKERS * network.hosts, size, must=must, aim=aim, ours="tls"
                )
                ours: list[float] = []
                peer: list[float] = []
                transport = ""
                for _ in range(sizes.rounds):
                    times, transport = ring.measure("tls", case, sizes.operations, seats)
                    ours += times
                    if gloo:
                        peer += ring.measure("gloo", case, sizes.operations, seats)[0]
                found.append(
                    Row(case, statistics.median(ours), statistics.median(peer) if peer else None, transport)
                )
    return found


def lack() -> str:
    """Return why there can be no namespaces here; empty: there can."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [program for program in ("ip", "nsenter", "tc", "unshare") if not shutil.which(program)]
    if missing:
        return f"network namespaces need {', '.join(missing)} (Debian packages iproute2 and util-linux)"
    tried = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True, text=True)
    return tried.stderr.strip()


@contextmanager
def joined(network: Network) -> Iterator[list[Seat]]:
    """Make the hosts and what joins them; yield a seat for each worker, host by host.

    Raises:
        RuntimeError: a command failed; what it said is in the message.
    """
    with ExitStack() as all_of_it:
        sockets = Path(all_of_it.enter_context(tempfile.TemporaryDirectory(prefix="edl-")))
        switch = all_of_it.enter_context(namespace())
        run(switch, "ip", "link", "add", "bridge0", "type", "bridge")
        run(switch, "ip", "link", "set", "bridge0", "up")
        seats = []
        for number in range(1, network.hosts + 1):
            host = all_of_it.enter_context(namespace())
            port, address = f"port{number}", f"10.0.0.{number}"
            run(switch, *f"ip link add {port} type veth peer name eth0 netns {host}".split())
            run(switch, "ip", "link", "set", port, "master", "bridge0", "up")
            run(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run(host, "ip", "link", "set", device, "up")
            for place, device in ((switch, port), (host, "eth0")):
                bucket = f"tbf rate {network.gigabits}gbit burst {BURST} latency {QUEUE}"
                run(place, *f"tc qdisc add dev {device} root {bucket}".split())
            (sockets / str(number)).mkdir()
            seats += [
                Seat(
                    entering(host),
                    f"tcp:{address}:0+unix:{sockets}/{number}/{worker}",
                    {"GLOO_SOCKET_IFNAME": "eth0"},
                )
                for worker in range(WORKERS)
            ]
        yield (
            [seat for worker in range(WORKERS) for seat in seats[worker::WORKERS]]
            if network.scattered
            else seats
        )


@contextmanager
def namespace() -> Iterator[int]:
    """Make a network namespace; yield the process that keeps it."""
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo made; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            if process.stdout.readline() != "made\n":
                raise RuntimeError("no network namespace could be made")
            yield process.pid
        finally:
            process.kill()


def entering(host: int) -> tuple[str, ...]:
    """Return what a command in a namespace begins with."""
    return ("nsenter", f"--net=/proc/{host}/ns/net")


def run(host: int, *command: str) -> None:
    """Run a command in a namespace. Raises RuntimeError."""
    done = subprocess.run([*entering(host), *command], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    return ring.table(found) if found else f"not measured: {lack()}"


def main() -> None:
    """Print the table of all networks and messages."""
    print(table(rows(EVERY)))
    print(f"\n{ring.conditions()}; medians of {EVERY.rounds} turns each")


if __name__ == "__main__":
    main()
