"""What the runner asks of a way of training: questions about its machine, and what follows from some of its events.

The order of a master's steps is the runner's, for all ways of training. A strategy answers when it is asked, keeps nothing of the job, and
knows no socket, queue or tick.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.control.protocol.messages import MemberMessage
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.events import Announce, GiveUp
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import FinishedRecord, Record
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.processes.starting import Stage
from elasticdl.master.reporting.history import EventHistory

Machine = TypeVar("Machine", bound=MasterCore)


class Actions(Protocol):
    """What a strategy may have done by the runner."""

    @property
    def history(self) -> EventHistory:
        """Return the figures that people see."""

    def tell(self, kind: EventKind, text: str, *, worker: str = "", view: int = 0) -> None:
        """Tell people of an event."""

    def direct(self, event: replicas.Event, role: Role = Role.WORKER) -> None:
        """Ask which processes of a role should run, and see to it."""


class RunnerStrategy(Protocol[Machine]):
    """One way of training."""

    tick_seconds: float
    """Time between two ticks: half of the shortest time that matters to the machine."""
    status_seconds: float
    """Least time between two statuses of which only the figures differ."""

    def begin(self) -> Machine:
        """Return the machine of a master that knows nothing yet. Raises BadInput if the job can't begin."""

    # What people see.

    def show_position(self, machine: Machine, history: EventHistory) -> None:
        """Give the history the place in the data that the journal says."""

    def show_message(
        self, before: Machine, after: Machine, message: MemberMessage, history: EventHistory
    ) -> bool:
        """Give the history what a member's message says; tell whether the figures have changed."""

    def moment(self, machine: Machine) -> Hashable:
        """Return what is shown at once when it has changed."""

    def status(
        self,
        machine: Machine,
        history: EventHistory,
        forces: Mapping[Role, ReplicaSet],
        processes: Processes,
        now: float,
    ) -> JobStatus:
        """Return how the job stands."""

    def why_lost(self, machine: Machine, processes: Processes) -> str:
        """Return what people can do if a job waits for processes of which nobody can say whether they are dead; empty if it does not."""

    def figures(self, machine: Machine, history: EventHistory) -> dict[str, Any]:
        """Return what the summary says of who took part; `joined`: how many workers."""

    # Processes.

    def stages(self, machine: Machine) -> Mapping[str, Stage]:
        """Return how far those processes are, by name, that have registered or take part as the journal says."""

    def members_of(self, machine: Machine, name: str) -> Collection[MemberId]:
        """Return the members that a process was."""

    def leaves_when_told(self, machine: Machine, name: ProcessName) -> bool:
        """Tell whether the machine asks this process to leave, which then has the time that it needs; a pod has seconds after a signal."""

    def replicas_event(self, announce: Announce) -> replicas.Event | None:
        """Return what an announcement means for the number of processes, None if nothing."""

    # Records and files.

    def before_append(self, machine: Machine, record: Record) -> GiveUp | str | None:
        """Do what has to be done before a record is appended.

        Returns None when it is done; in words what is in the way, if it is to be tried again before the record is appended; GiveUp if
        the job can't go on.
        """

    def after_append(self, machine: Machine, record: Record, actions: Actions) -> None:
        """Do what follows a durable record of this way of training, before any process learns of it."""

    def complete_audit(self, machine: Machine, record: FinishedRecord) -> None:
        """Write the end of the audit. Raises OSError."""

    def drop_snapshots(self, folder: Path | None, *, keeps_result: bool) -> None:
        """Remove of a job that has ended what only a running one needs.

        `folder`: where its snapshots lie; `keeps_result`: what is to be put in its place still lies where it was made.
        """


def in_background(what: Callable[..., object], *arguments: object) -> None:
    """Do something with files on a thread of its own: a volume that does not answer must not hold up the master."""
    threading.Thread(target=what, args=arguments, name="snapshots", daemon=True).start()
