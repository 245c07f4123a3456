"""Which processes hang, or take too long, before they take part: pure decisions.

A process that has not joined is no member of anything, so the machine has nothing to judge it by. It sends heartbeats from its first
second, and its silence counts like a member's; one that sends them has `start_seconds` to import, load, trace and register. From then on
it waits for others, however long that takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.witnesses import Statement, Times, Witness, judge

SHOWN_AFTER = 10.0
"""Seconds after which people see how long a start has lasted; most are over by then."""


class Stage(StrEnum):
    """How far a process is on its way into the job."""

    STARTING = "starts"
    WAITING = "waits to join"
    """It has registered, and is no member yet."""
    JUDGED = "takes part"
    """Or did: the machine judges it."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process that runs and takes no part yet.

    Attributes:
        since: when this master first knew that it runs.
        member: its member id, None before its control stream was open.
        beat_at: when its last heartbeat came, None before the first.
        killed_at: when it was last killed, None if it was not.
        stage: how far it is.
    """

    since: float
    member: MemberId | None = None
    beat_at: float | None = None
    killed_at: float | None = None
    stage: Stage = Stage.STARTING


@dataclass(frozen=True, slots=True)
class Overdue:
    """A process that is to be replaced.

    Attributes:
        name: of the process.
        reason: why.
        hangs: it is silent; otherwise its program works and does not get ready.
    """

    name: str
    reason: str
    hangs: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a start may take.

    Attributes:
        times: of the protocol; `stall` is how long nothing at all may be heard of a process that runs.
        ready: seconds that a process which sends heartbeats has to get ready.
        data_since: since when it can read the data, None while the master indexes that: a process that waits for it is not late.
        program: what the user's own program is called, if workers run one: nothing is heard of it before it calls `init`.
    """

    times: Times
    ready: float
    data_since: float | None
    program: str = ""


def overdue(now: float, starts: Mapping[str, Start], limits: Limits) -> list[Overdue]:
    """Return the processes that are to be killed at time `now` (seconds), each once more after `alone` if it has not ended."""
    found = []
    for name, start in starts.items():
        if start.killed_at is not None and now - start.killed_at < limits.times.alone:
            continue
        if limits.program and start.member is None:
            if now - start.since >= limits.ready:
                reason = f"{limits.program} has not called elasticdl.init() after {limits.ready:g} s (start_seconds)"
                found.append(Overdue(name, reason, hangs=False))
            continue
        hangs = _why_hangs(now, start, limits.times)
        if hangs is not None:
            found.append(Overdue(name, hangs, hangs=True))
        elif _is_late(now, start, limits):
            reason = f"it is not ready after {limits.ready:g} s (start_seconds)"
            found.append(Overdue(name, reason, hangs=False))
    return found


def _why_hangs(now: float, start: Start, times: Times) -> str | None:
    if start.beat_at is None:
        silent = now - start.since
        return f"nothing has been heard of it for {silent:.0f} s" if silent >= times.stall else None
    return judge(now, (Statement(Witness.BEAT, start.beat_at + 3 * times.heartbeat),), times)


def _is_late(now: float, start: Start, limits: Limits) -> bool:
    if start.stage is not Stage.STARTING or limits.data_since is None:
        return False
    return now - max(start.since, limits.data_since) >= limits.ready


def explain(now: float, start: Start | None, ready: float) -> str:
    """Return what people should know of a process that starts, or nothing."""
    if start is None or now - start.since < SHOWN_AFTER:
        return ""
    return f"for {now - start.since:.0f} s; it is replaced if it is not ready after {ready:g} s"


def on_the_way(starts: Mapping[str, Start], stages: Mapping[str, Stage]) -> dict[str, Start]:
    """Return the starts of those that the machine does not judge yet; `stages`: of those that have registered, or are known to it."""
    return {
        name: replace(start, stage=stages.get(name, Stage.STARTING))
        for name, start in starts.items()
        if stages.get(name) is not Stage.JUDGED
    }


def with_beats(starts: Mapping[str, Start], beats: Mapping[MemberId, float]) -> dict[str, Start]:
    """Return starts with the times of the last heartbeats."""
    return {
        name: start
        if start.member is None or start.member not in beats
        else replace(start, beat_at=beats[start.member])
        for name, start in starts.items()
    }
