"""The processes of a simulated job, and what lies in their memory in fact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elasticdl.control.protocol.view import MemberId, StateId, View
from elasticdl.data.plan.shard import Position
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.machine import Member
from tests.simulation.oracle import History, Lineage


@dataclass(eq=False)
class Token:
    """One piece of work under way; it comes back exactly once."""

    work: Any
    done: bool = False
    version: int = 0
    scheduled: bool = False


@dataclass(eq=False)
class Connection:
    number: int
    worker: Worker
    master: MasterProcess
    open: bool = True
    flushes: bool = False
    up: float = 0.0
    down: float = 0.0


@dataclass(eq=False)
class Worker:
    """One process of a member, and what lies in its memory in fact."""

    name: str
    machine: Member
    status: str = "up"
    connection: Connection | None = None
    stash: list[Any] = field(default_factory=list)
    closed: int = 0
    """Views up to this one are closed here."""
    view: View | None = None
    lineage: Lineage | None = None
    history: History = ()
    """What callbacks have had, at the gates of which states."""
    sums: tuple[int, int, Lineage] | None = None
    """An evaluation task, how many of its minibatches are added up, and on which state."""
    position: Position | None = None
    """Of the state that the last commit made."""
    accumulator: list[tuple[int, tuple[int, int, int], Lineage]] = field(default_factory=list)
    """Lane, chunk and the state on which its gradient was computed."""
    token: Token | None = None
    heal: Token | None = None
    serving: tuple[int, StateId, Lineage, History] | None = None
    hangs: bool = False
    stuck: bool = False
    unreachable_until: float = 0.0
    late: bool = False
    """A chunk was computed after the promise: nobody was told, so it may be lost."""
    ended_training: bool = False

    @property
    def id(self) -> MemberId:
        return self.machine.id

    @property
    def lives(self) -> bool:
        return self.status in ("up", "paused")

    @property
    def beat(self) -> tuple[int, int, int]:
        """What its heartbeats say."""
        return self.machine.beat


@dataclass(frozen=True)
class SavedPart:
    """A member's part of a state, as it lies in its file.

    Attributes:
        lineage: the state that it is of.
        history: what callbacks have had.
        rank: the member's place in its view.
        members: how many that has.
    """

    lineage: Lineage
    history: History
    rank: int
    members: int


@dataclass(eq=False)
class MasterProcess:
    number: int
    machine: AllReduceMaster
    status: str = "up"
    stash: list[Any] = field(default_factory=list)
    connections: dict[int, Connection] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return self.status in ("up", "paused")


@dataclass(eq=False)
class Ring:
    view: View
    step: int
    parts: dict[MemberId, tuple[tuple[int, tuple[int, int, int], Lineage], ...]] = field(default_factory=dict)
    trailers: dict[MemberId, to_member.Trailer] = field(default_factory=dict)
    waiting: dict[MemberId, tuple[Worker, Token]] = field(default_factory=dict)
