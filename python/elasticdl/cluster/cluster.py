"""Where processes live, as the master sees it.

A Protocol with one implementation today (`cluster/local.py`, through the launcher); Kubernetes pods are the next one. It starts,
signals and reports; it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """The roles of a job's processes."""

    MASTER = "master"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, order=True)
class ProcessName:
    """One life of one process: `worker-3-2` is the second life of worker 3. Names are never reused."""

    role: Role
    index: int
    life: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}-{self.life}"


def process_name(text: str) -> ProcessName:
    """Read `worker-3-2`."""
    role, index, life = text.rsplit("-", 2)
    return ProcessName(Role(role), int(index), int(life))


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The process runs."""

    name: ProcessName
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process is proven dead (`waitpid`): exactly one of `code` and `signal` is set."""

    name: ProcessName
    code: int | None
    signal: int | None


ProcessEvent = ProcessStarted | ProcessEnded


class Cluster(Protocol):
    """Starts and signals processes; repeats every process's last event after a restart of the master."""

    def launch(self, name: ProcessName) -> None:
        """Start a process; a name that was launched before is ignored."""

    def signal(self, name: ProcessName, number: int) -> None:
        """Send a signal; no error if the process has ended."""

    def events(self, seconds: float) -> list[ProcessEvent]:
        """Wait at most `seconds` for events."""

    def close(self) -> None:
        """Release the connection; processes go on."""
