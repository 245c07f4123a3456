"""What was said on each control stream of a job with parameter servers, so that it is said once.

It says nothing about who is there, which `liveness.py` does: a process that connects again hears everything again.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.cluster.cluster import Role
from elasticdl.control.protocol.messages import TaskLeased
from elasticdl.control.protocol.psmessages import Limits
from elasticdl.control.protocol.view import StateId
from elasticdl.master.core import machine as core
from elasticdl.master.core.done import TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.ps.placement import Copy

_SERVER = f"{Role.PS}-"


@dataclass(frozen=True, kw_only=True)  # no slots: see elasticdl.control.protocol.frozen
class Link(core.Link):
    """A control stream of a worker or a server, and what was said on it.

    Attributes:
        model: `Model` was sent.
        placed: the servers and the newest change of a slot that were sent, None before the first `Placed`.
        low: roll-back, watermark and tasks done beyond it that were sent.
        limits: what a server was last allowed to believe of workers.
        workers: which workers were last named to a server.
        leased: tasks that it knows to have.
        evaluates: the evaluation tasks that it has been told of, of those leased to it.
        opened: the barriers that were sent as passed, by their states.
        opened_in: the roll-back in which they were.
        copies: copies that were ordered.
        cut: number of the snapshot for which slots were asked for last.
        cut_at: when.
        stopped: `Stop` was sent.
        left: it was asked to leave.
        accounts: accounts were asked for when this was the newest change of a slot.
        result: the attempt for which the result was asked for.
        ended: the attempt in which it learned that training is over, and another worker writes.
    """

    model: bool = False
    placed: tuple[frozenset[ServerId], int] | None = None
    low: tuple[int, int, tuple[int, ...]] = (-1, -1, ())
    limits: Limits | None = None
    workers: frozenset[str] | None = None
    leased: frozenset[TaskNumber] = frozenset()
    evaluates: tuple[TaskLeased, ...] = ()
    opened: frozenset[StateId] = frozenset()
    opened_in: int = 0
    copies: frozenset[Copy] = frozenset()
    cut: int = 0
    cut_at: float = 0.0
    stopped: bool = False
    left: bool = False
    accounts: int = -1
    result: int = 0
    ended: int = 0

    @property
    def is_server(self) -> bool:
        """Tell whether it is a parameter server's."""
        return self.name.startswith(_SERVER)
