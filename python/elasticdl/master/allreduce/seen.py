"""What a master has heard of one member of a group, and what it has said on the member's connection."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.messages import Report
from elasticdl.control.protocol.view import Peer, StateId, ViewId
from elasticdl.master.core import machine as core

NO_VIEW = ViewId(0)


@dataclass(frozen=True, kw_only=True)  # no slots: see elasticdl.control.protocol.frozen
class Link(core.Link):
    """A member's control stream, and what was said on it.

    Attributes:
        view: id of the view told last.
        pending: view of the last `Pending`.
        stop: view of the last `Stop`.
        stop_at: when that was sent.
        at_gate: state at whose gate the member is, as it said last on this connection.
        gate_told: state whose gate is open, as it was told last.
    """

    view: ViewId = NO_VIEW
    pending: ViewId = NO_VIEW
    stop: ViewId = NO_VIEW
    stop_at: float = 0.0
    at_gate: StateId | None = None
    gate_told: StateId | None = None


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Seen:
    """What this master has heard of one member.

    Attributes:
        peer: who.
        report: what it said last that it holds and has promised.
        connection: its control stream, None if it broke.
        registered_at: when it registered first.
        cut_at: when its control stream broke.
        beat_at: when its last heartbeat came, None before the first.
        beat: view, step and progress of that heartbeat.
        moved_at: when these changed last.
    """

    peer: Peer
    report: Report
    connection: int | None
    registered_at: float
    cut_at: float | None = None
    beat_at: float | None = None
    beat: tuple[int, int, int] = (0, 0, 0)
    moved_at: float = 0.0
