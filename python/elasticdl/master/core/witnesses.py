"""Who is dead, and who is suspected: the weighing of witnesses.

Pure. Proof (a wait status) needs no weighing. Everything else is suspicion, which may be wrong and may be withdrawn: two independent
witnesses are enough at once, one alone waits, and a member that nobody waits for is never accused of waiting. Times are those of the
job's settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median

SUSPICION = "left out on suspicion"
"""Cause of a recovery as long as nobody knows what has become of the worker."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the protocol, in seconds.

    Attributes:
        heartbeat: between two heartbeats (0.5: often enough to see a hang within seconds); three missing ones are a witness.
        alone: how long one witness alone must last (5.0), and how long somebody who has sealed in good order waits for the others.
        stall: least time without progress of a member that sends heartbeats (60.0: first traces compile for long).
        stall_steps: the same in median steps (10); the larger counts.
        moment: before `stop` when the only reason is that somebody sealed (0.05): rings that are about to complete should.
        gather: how long the first view waits for all workers once the first has registered (10.0).
    """

    heartbeat: float = 0.5
    alone: float = 5.0
    stall: float = 60.0
    stall_steps: float = 10.0
    moment: float = 0.05
    gather: float = 10.0


class Witness(StrEnum):
    """Who speaks against a member. `STALL` and `DEAF` have waited already: each is enough."""

    STREAM = "its control stream is broken"
    BEAT = "its heartbeats are missing"
    ACCUSED = "a peer lost its connection to it"
    STALL = "it makes no progress"
    DEAF = "it does not answer stop"


@dataclass(frozen=True, slots=True)
class Statement:
    """One witness against one member.

    Attributes:
        witness: which.
        since: when it began to speak; in the future: it does not speak yet.
    """

    witness: Witness
    since: float


def judge(now: float, statements: tuple[Statement, ...], times: Times) -> str | None:
    """Return why a member is suspected, or None: two witnesses at once, one alone after `times.alone`, some by themselves."""
    speaking = [statement for statement in statements if statement.since <= now]
    kinds = {statement.witness for statement in speaking}
    if len(kinds) >= 2:
        return " and ".join(sorted(kinds))
    for statement in speaking:
        if statement.witness in (Witness.STALL, Witness.DEAF):
            return str(statement.witness)
        if now - statement.since >= times.alone:
            return f"{statement.witness} for {now - statement.since:.1f} s"
    return None


def stall_limit(paces: tuple[float, ...], times: Times) -> float:
    """Return after how many seconds without progress a member is suspected; `paces`: seconds of recent steps."""
    return max(times.stall, times.stall_steps * median(paces)) if paces else times.stall


@dataclass(frozen=True, slots=True)
class Accusation:
    """A member of a view blames another one of it."""

    accuser: str
    accused: str


def mutual_suspicions(accusations: tuple[Accusation, ...]) -> frozenset[frozenset[str]]:
    """Return the pairs between which a connection broke; pairs that accuse each other, if there are any (others only saw the fall)."""
    pairs = {(a.accuser, a.accused) for a in accusations}
    mutual = frozenset(frozenset(pair) for pair in pairs if (pair[1], pair[0]) in pairs)
    return mutual or frozenset(frozenset(pair) for pair in pairs)


def loser(pair: frozenset[str], accusations: tuple[Accusation, ...], age: tuple[str, ...]) -> str:
    """D9: return which of two members that can't reach each other is left out: the one with more accusers; if equal, the younger.

    Args:
        pair: the two.
        accusations: of the view that broke.
        age: members, oldest first.
    """

    def weight(member: str) -> tuple[int, int]:
        accusers = {a.accuser for a in accusations if a.accused == member}
        return len(accusers), age.index(member) if member in age else len(age)

    return max(sorted(pair), key=weight)
