"""Where processes live, as the master sees it.

A Protocol with two implementations: processes of this machine (`cluster/local/localcluster.py`, through the launcher) and pods
(`cluster/kubernetes/podcluster.py`). It starts, signals and reports; it decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

FINISHED = 0
"""Exit code of a process whose job has ended; before that, a program that ends itself with it has done so in error."""
RELEASED, EVICTED = 75, 3
"""Exit codes of a process that may go, and of one that its group has left out: neither is a fault of its program.

That of a release is one which hardly any program uses: it alone proves, also to the next master, that the process was to leave.
"""
NO_MEMORY = 4
"""Exit code of a parameter server that could get no more memory."""


class Role(StrEnum):
    """The roles of a job's processes."""

    MASTER = "master"
    WORKER = "worker"
    PS = "ps"


@dataclass(frozen=True, slots=True, order=True)
class ProcessName:
    """One life of one process: `worker-3-2` is the second life of worker 3. Names are never reused."""

    role: Role
    index: int
    life: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}-{self.life}"


FIRST_WORKER = ProcessName(Role.WORKER, 0, 1)
"""The first life of worker 0."""


@functools.lru_cache(maxsize=4096)  # masters ask for the same few names at every event
def process_name(text: str) -> ProcessName:
    """Read `worker-3-2`."""
    role, index, life = text.rsplit("-", 2)
    return ProcessName(Role(role), int(index), int(life))


class Blame(StrEnum):
    """Who ended a process."""

    PROGRAM = "program"
    """The process itself, or the sender of the signal in the event."""
    CLUSTER = "cluster"
    """Preemption, eviction, the loss of its node, or somebody who deleted it."""
    MEMORY = "memory"
    """It needed more memory than it may have."""
    START = "start"
    """It could never run: a bad image, a bad volume."""


class ProcessPending(Struct, frozen=True):
    """The process was asked for and waits.

    Attributes:
        name: of the process.
        why: for people.
        has_room: for its node to prepare it, or to be placed by a scheduler that has not said that it can't; otherwise for room.
    """

    name: ProcessName
    why: str
    has_room: bool = False


class ProcessStarted(Struct, frozen=True):
    """The process runs; `pid` only on this machine; `spare`: it was waiting for this name, with the framework imported."""

    name: ProcessName
    pid: int | None
    spare: bool = False


class ProcessEnded(Struct, frozen=True):
    """The process is proven dead: `waitpid`, or all of its threads exit, or a container that its kubelet says has terminated.

    Attributes:
        name: of the process.
        code: its exit code, or None.
        signal: the signal that ended it, or None; both are None where nobody knows.
        blame: who ended it.
        text: how the cluster says it, or empty.
        memory: bytes that it was allowed to use, 0 if nothing limited them.
    """

    name: ProcessName
    code: int | None
    signal: int | None
    blame: Blame = Blame.PROGRAM
    text: str = ""
    memory: int = 0


class ProcessGone(Struct, frozen=True):
    """Whether the process is dead is open, and may stay so.

    Attributes:
        name: of the process.
        node: the node that does not answer, or empty: its pod was deleted by force.
    """

    name: ProcessName
    node: str = ""


ProcessEvent = ProcessPending | ProcessStarted | ProcessEnded | ProcessGone


class StopAsked(Struct, frozen=True):
    """Somebody wants an early end of the job."""

    reason: str


class ScaleAsked(Struct, frozen=True):
    """Somebody wants another number of workers or parameter servers; None: as many as now."""

    workers: int | None
    servers: int | None = None


ClusterEvent = ProcessEvent | StopAsked | ScaleAsked


class Cluster(Protocol):
    """Starts and signals processes; repeats every process's last event after a restart of the master."""

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Start a process; a name that was launched before is ignored.

        Args:
            name: of the process.
            memory: bytes that it may use, where the cluster limits them; 0: what the job's settings say.
        """

    def keep_spare(self) -> None:
        """Have a spare process ready for the next worker that is launched, where the job and the cluster have such processes."""

    def signal(self, name: ProcessName, number: int) -> None:
        """Send a signal; no error if the process has ended."""

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Tell of processes that have run, by the journal: those of which the cluster knows nothing are gone."""

    def events(self, seconds: float) -> Sequence[ClusterEvent]:
        """Wait at most `seconds` for events."""

    def close(self) -> None:
        """Release the connection; processes go on."""
