"""The faults that chaos injects: a script for each kind, which waits for its moment, sends signals, and says whether it hit.

A donor that is killed after its heal was over proves nothing and is not counted. Scripts are pure: time and sights in, signals out.
Moments too short to catch are held open by stopping the process that would end them, and only for that long.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elasticdl.cluster.cluster import RELEASED, Role
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.tools.observation import Observation

_SETTLE_SECONDS = 0.25
"""How long a stopped master leaves the others to notice a death: a broken connection is seen within milliseconds."""

_SEAL_SECONDS = 10.0
"""Longest wait for a seal: a member that computes sees the broken connection when it comes to its ring."""

_PAIR_SECONDS = 0.1
_PATIENCE_SECONDS = 180.0
"""For what takes a process's start: imports and a first trace on a busy machine."""

_LAST_WORDS_SECONDS = 0.03
"""What a master has said before it stood still arrives within milliseconds."""

_WAITING_SECONDS = 0.3
"""Twice this is less than it takes until a server that stands still counts as lost, and once more than a status comes after a step."""

_MOMENT_SECONDS = 60.0
"""For what begins soon, and more than once."""

_START_SECONDS = {Role.WORKER: 3.0, Role.PS: 0.2}
"""Latest moment, after a launch, at which a process that starts is stopped; earlier where starts are shorter."""

_TRIES = 50
_FEWEST, _MOST = 2, 5
"""Servers between which `scale` moves: two hold each slot."""


class FaultKind(StrEnum):
    """What can be injected."""

    KILL = "a worker at a random moment"
    PAIR = "two workers within 100 ms"
    DONOR = "the donor during a heal"
    JOINER = "the joiner during a heal"
    SEALED = "between seal and next view"
    FINAL = "in the final view"
    DRAINING = "while another drains"
    HANG = "a hang"
    STARTING = "a hang while starting"
    DRAIN = "a drain"
    MASTER = "the master at a random moment"
    CHANGE = "the master during a view change"
    SERVER = "a parameter server"
    SERVERS = "two parameter servers within 100 ms"
    SERVER_HANG = "a hang of a parameter server"
    SERVER_STARTING = "a hang of a parameter server while it starts"
    SERVER_DRAIN = "a drain of a parameter server"
    COPY = "a parameter server during copies"
    HANDOVER = "a parameter server while it is emptied"
    PROMOTION = "the master when a server has died"
    WORKERS = "all workers within 100 ms"
    UNACKNOWLEDGED = "a parameter server that waits for its backups"
    SNAPSHOT = "a server or the master during a snapshot"
    MORE_SERVERS = "scale: a parameter server more"
    FEWER_SERVERS = "scale: a parameter server less"


class Moment(StrEnum):
    """What must be under way when a fault hits, for some kinds of faults."""

    ACKNOWLEDGEMENT = "between apply and acknowledgement"
    COPY = "during a copy"
    HANDOVER = "during a hand-over"
    PROMOTION = "during a promotion"
    SNAPSHOT = "during a snapshot"


MOMENTS: Mapping[FaultKind, Moment] = {
    FaultKind.UNACKNOWLEDGED: Moment.ACKNOWLEDGEMENT,
    FaultKind.COPY: Moment.COPY,
    FaultKind.HANDOVER: Moment.HANDOVER,
    FaultKind.PROMOTION: Moment.PROMOTION,
    FaultKind.SNAPSHOT: Moment.SNAPSHOT,
}
"""Kinds of which a fault hits only at its moment, as was observed while the master stood still."""


GROUP = tuple(FaultKind)[: tuple(FaultKind).index(FaultKind.SERVER)]
"""Faults of jobs that train in step."""
PS = (
    FaultKind.KILL, FaultKind.HANG, FaultKind.STARTING, FaultKind.DRAIN, FaultKind.MASTER, *tuple(FaultKind)[len(GROUP) :],
)  # fmt: skip
"""Faults of jobs with parameter servers."""


# ------------------------------------------------------------------ scripts


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to a process; `master` is the current life of the master."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Ask the master for another number of parameter servers."""

    servers: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until the condition returns something else than None; that is the answer, None if the time is over before."""

    condition: Callable[[Observation], Any]
    seconds: float


Request = Send | Scale | Pause | Until
Script = Generator[Request, Any, bool]
"""Yields requests, gets a sight for `Send`, `Scale` and `Pause` and the condition's answer for `Until`; returns whether it hit."""

MASTER = "master"


def _kill(observation: Observation, dice: random.Random) -> Script:
    victim = dice.choice(observation.training)
    yield Send(victim, signal.SIGKILL)
    return (yield Until(lambda observation: observation.killed(victim) or None, 10)) is not None


def _pair(observation: Observation, dice: random.Random) -> Script:
    first, second = dice.sample(observation.training, 2)
    yield Send(first, signal.SIGKILL)
    yield Pause(dice.uniform(0, 0.8 * _PAIR_SECONDS))
    yield Send(second, signal.SIGKILL)
    both = yield Until(
        lambda observation: (observation.killed(first) and observation.killed(second)) or None, 10
    )
    return both is not None


def _heal(observation: Observation, dice: random.Random, victim_is_donor: bool) -> Script:
    """Stop a worker that is about to join, wait until a donor serves it, and kill one of the two."""
    joiner = dice.choice(observation.coming)

    def arrived(observation: Observation) -> str | None:
        if joiner in observation.ended or observation.ending:
            return "ended"
        state = (
            next((w.state for w in observation.status.workers if w.name == joiner), "")
            if observation.status
            else ""
        )
        return None if state in ("", "starting") else state

    if (yield Until(arrived, _PATIENCE_SECONDS)) not in ("joining", "healing"):
        return False
    yield Send(joiner, signal.SIGSTOP)
    servers = yield Until(lambda observation: observation.heard(EventKind.SERVING), 10)
    if servers is None:
        return False
    victim = servers.worker if victim_is_donor else joiner
    yield Send(victim, signal.SIGKILL)
    if (yield Until(lambda observation: observation.killed(victim) or None, 10)) is None:
        return False
    # the view was the joiner's, and it had not healed in it when the victim died
    observation = yield Pause(_SETTLE_SECONDS)
    return not any(
        event.kind == EventKind.HEALED and event.worker == joiner and event.view == servers.view
        for event in observation.events
    )


def _donor(observation: Observation, dice: random.Random) -> Script:
    return (yield from _heal(observation, dice, victim_is_donor=True))


def _joiner(observation: Observation, dice: random.Random) -> Script:
    return (yield from _heal(observation, dice, victim_is_donor=False))


def _sealed(observation: Observation, dice: random.Random) -> Script:
    """Without a master nobody gets a next view: who has sealed waits, and is killed."""
    first, second = dice.sample(observation.training, 2)
    before = observation.seals(second)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(first, signal.SIGKILL)
    sealed = yield Until(lambda observation: observation.seals(second) > before or None, _SEAL_SECONDS)
    yield Send(second, signal.SIGKILL)
    killed = yield Until(lambda observation: observation.killed(second) or None, 10)
    yield Send(MASTER, signal.SIGCONT)
    return sealed is not None and killed is not None


def _final(observation: Observation, dice: random.Random) -> Script:
    victim = dice.choice(observation.workers("finishing"))
    yield Send(victim, signal.SIGKILL)
    yield Until(lambda observation: observation.killed(victim) or None, 10)
    # with the result journalled the view is over, and the kill came too late
    return (
        yield Until(
            lambda observation: observation.heard(EventKind.LOST, EventKind.FINISHED, worker=victim), 30
        )
    ) is not None


def _draining(observation: Observation, dice: random.Random) -> Script:
    """Without a master nobody is released: the one drains while the other dies."""
    leaver, victim = dice.sample(observation.training, 2)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(leaver, signal.SIGTERM)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    yield Send(victim, signal.SIGKILL)
    observation = yield Until(lambda observation: observation if observation.killed(victim) else None, 10)
    drained_alive = observation is not None and leaver in observation.live
    yield Send(MASTER, signal.SIGCONT)
    left = yield Until(lambda observation: observation.heard(EventKind.DRAINED, worker=leaver), 30)
    return drained_alive and left is not None


def _hang(observation: Observation, dice: random.Random) -> Script:
    victim = dice.choice(observation.training)
    yield Send(victim, signal.SIGSTOP)
    gone = yield Until(
        lambda observation: observation.heard(EventKind.EVICTED, EventKind.LOST, worker=victim),
        _PATIENCE_SECONDS,
    )
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    yield Send(victim, signal.SIGCONT)
    return gone is not None


def _starting(observation: Observation, dice: random.Random) -> Script:
    return (yield from _hang_at_start(dice.choice(observation.training), dice))


def _server_starting(observation: Observation, dice: random.Random) -> Script:
    return (yield from _hang_at_start(dice.choice(observation.servers), dice))


def _hang_at_start(victim: str, dice: random.Random) -> Script:
    """Kill a process and stop its successor before it has registered; the master has to replace that, too.

    A successor that comes from a spare process is through in a tenth of a second. So it is stopped as soon as it is there, or later
    by no more than half of the quickest start that was seen in this job.
    """
    role, index, life = victim.split("-")
    successor = f"{role}-{index}-{int(life) + 1}"
    yield Send(victim, signal.SIGKILL)
    seen = yield Until(
        lambda observation: observation if successor in observation.live else None, _PATIENCE_SECONDS
    )
    if seen is None:
        return False
    yield Pause(dice.uniform(0, min(_START_SECONDS[Role(role)], seen.quickest.get(role, 0.0) / 2)))
    yield Send(successor, signal.SIGSTOP)
    replaced = yield Until(
        lambda observation: observation.heard(
            EventKind.REPLACED, EventKind.JOINED, EventKind.EVICTED, EventKind.LOST, worker=successor
        ),
        _PATIENCE_SECONDS,
    )
    if replaced is not None and replaced.kind == EventKind.REPLACED:
        return (yield Until(lambda observation: observation.killed(successor) or None, 10)) is not None
    yield Send(successor, signal.SIGCONT)  # it had registered before it stood still
    return False


def _drain(observation: Observation, dice: random.Random) -> Script:
    leaver = dice.choice(observation.training)
    yield Send(leaver, signal.SIGTERM)
    released = yield Until(lambda observation: observation.ended.get(leaver), 30)
    told = yield Until(lambda observation: observation.heard(EventKind.DRAINED, worker=leaver), 10)
    return bool(released == (RELEASED, None) and told is not None)


def _master(observation: Observation, dice: random.Random) -> Script:
    before = observation.masters
    yield Send(MASTER, signal.SIGKILL)
    return (yield Until(lambda observation: observation.masters > before or None, 30)) is not None


def _change(observation: Observation, dice: random.Random) -> Script:
    """Kill the master after a death that calls for a new view, and before it has decided one."""
    before = observation.masters
    victim = dice.choice(observation.training)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(victim, signal.SIGKILL)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    observation = yield Until(lambda observation: observation if observation.killed(victim) else None, 10)
    yield Send(MASTER, signal.SIGKILL)
    again = yield Until(lambda observation: observation.masters > before or None, 30)
    return observation is not None and again is not None


def _server(observation: Observation, dice: random.Random) -> Script:
    victim = dice.choice(observation.servers)
    yield Send(victim, signal.SIGKILL)
    return (yield Until(lambda observation: observation.killed(victim) or None, 10)) is not None


def _servers(observation: Observation, dice: random.Random) -> Script:
    return (yield from _two(dice.sample(observation.servers, 2), dice))


def _two(victims: Sequence[str], dice: random.Random) -> Script:
    """Kill processes one after the other within a tenth of a second."""
    for victim in victims:
        yield Send(victim, signal.SIGKILL)
        yield Pause(dice.uniform(0, 0.8 * _PAIR_SECONDS / len(victims)))
    dead = yield Until(lambda observation: all(map(observation.killed, victims)) or None, 10)
    return dead is not None


def _workers(observation: Observation, dice: random.Random) -> Script:
    return (yield from _two(observation.training, dice))


def _server_hang(observation: Observation, dice: random.Random) -> Script:
    victim = dice.choice(observation.servers)
    yield Send(victim, signal.SIGSTOP)
    gone = yield Until(
        lambda observation: observation.heard(EventKind.LOST, worker=victim), _PATIENCE_SECONDS
    )
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    yield Send(victim, signal.SIGCONT)
    return gone is not None


def _server_drain(observation: Observation, dice: random.Random) -> Script:
    leaver = dice.choice(observation.servers)
    yield Send(leaver, signal.SIGTERM)
    released = yield Until(lambda observation: observation.ended.get(leaver), _PATIENCE_SECONDS)
    return bool(released == (RELEASED, None))


def _hold(
    under_way: Callable[[JobStatus], int], victims: Callable[[Observation], Sequence[str]]
) -> Generator[Request, Any, Observation | None]:
    """Stop the master when something is under way that it alone can end; return what is seen then, None if that never was."""

    def begun(observation: Observation) -> bool | None:
        if observation.ending:
            return False
        return (
            True
            if observation.status is not None and under_way(observation.status) and victims(observation)
            else None
        )

    for _ in range(_TRIES):
        if not (yield Until(begun, _MOMENT_SECONDS)):
            return None
        yield Send(MASTER, signal.SIGSTOP)
        observation: Observation = yield Pause(_LAST_WORDS_SECONDS)
        if begun(observation):
            return observation
        yield Send(MASTER, signal.SIGCONT)  # it was over before the master stood still
    return None


def _kill_while(
    under_way: Callable[[JobStatus], int],
    victims: Callable[[Observation], Sequence[str]],
    dice: random.Random,
) -> Script:
    """Kill somebody while something is under way and the master can't end it; the master itself may be the victim."""
    held = yield from _hold(under_way, victims)
    if held is None:
        return False
    victim = dice.choice(victims(held))
    yield Send(victim, signal.SIGKILL)
    if victim == MASTER:
        return (yield Until(lambda observation: observation.masters > held.masters or None, 30)) is not None
    killed = yield Until(lambda observation: observation.killed(victim) or None, 10)
    yield Send(MASTER, signal.SIGCONT)
    return killed is not None


def _copy(observation: Observation, dice: random.Random) -> Script:
    """Kill a server, and when its slots are copied to others, one of those."""
    first = dice.choice(observation.servers)
    yield Send(first, signal.SIGKILL)
    if (yield Until(lambda observation: observation.heard(EventKind.LOST, worker=first), 30)) is None:
        return False
    return (
        yield from _kill_while(lambda status: status.copies, lambda observation: observation.servers, dice)
    )


def _handover(observation: Observation, dice: random.Random) -> Script:
    """Ask a server to leave, and while its slots are handed over kill it, or one that takes them."""
    leaver = dice.choice(observation.servers)
    yield Send(leaver, signal.SIGTERM)
    if (yield Until(lambda observation: observation.heard(EventKind.LEAVING, worker=leaver), 30)) is None:
        return False

    def victims(observation: Observation) -> list[str]:
        return [*observation.servers, *observation.workers("draining")] if leaver in observation.live else []

    return (yield from _kill_while(lambda status: status.handovers, victims, dice))


def _snapshot(observation: Observation, dice: random.Random) -> Script:
    return (
        yield from _kill_while(
            lambda status: status.snapshot, lambda observation: [MASTER, *observation.servers], dice
        )
    )


def _unacknowledged(observation: Observation, dice: random.Random) -> Script:
    """Stop all servers but one, so that its backups accept nothing, and kill it when pushes wait for them."""
    victim, *others = dice.sample(observation.servers, len(observation.servers))
    for other in others:
        yield Send(other, signal.SIGSTOP)
    first = yield Pause(_WAITING_SECONDS)
    last = yield Pause(_WAITING_SECONDS)
    yield Send(victim, signal.SIGKILL)
    killed = yield Until(lambda observation: observation.killed(victim) or None, 10)
    for other in others:
        yield Send(other, signal.SIGCONT)
    # All that train have pushed, and nothing was settled: what this server applied waited for the others.
    waited = first.status.step == last.status.step and bool(last.training)
    return killed is not None and waited and last.heard(EventKind.LOST, EventKind.ENDED) is None


def _more_servers(observation: Observation, dice: random.Random) -> Script:
    return (
        yield from _scale(observation, 1, lambda observation, before: bool(set(observation.servers) - before))
    )


def _fewer_servers(observation: Observation, dice: random.Random) -> Script:
    return (yield from _scale(observation, -1, _a_server_goes))


def _a_server_goes(observation: Observation, _before: set[str]) -> bool:
    """Tell whether one is emptied, or has ended because it had not begun yet."""
    return any(
        event.kind in (EventKind.LEAVING, EventKind.ENDED) and event.worker.startswith(Role.PS)
        for event in observation.events
    )


def _scale(observation: Observation, by: int, follows: Callable[[Observation, set[str]], bool]) -> Script:
    """Ask for another number of servers, and wait until what has to follow begins."""
    assert observation.status is not None
    wanted, before = observation.status.wanted_servers + by, set(observation.servers)
    yield Scale(wanted)

    def begun(observation: Observation) -> bool | None:
        if observation.ending:
            return False
        asked = observation.status is not None and observation.status.wanted_servers == wanted
        return True if asked and follows(observation, before) else None

    return bool((yield Until(begun, _MOMENT_SECONDS)))


def _promotion(observation: Observation, dice: random.Random) -> Script:
    """Kill a server while the master can't promote anybody, then the master."""
    before, victim = observation.masters, dice.choice(observation.servers)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(victim, signal.SIGKILL)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    observation = yield Until(lambda observation: observation if observation.killed(victim) else None, 10)
    yield Send(MASTER, signal.SIGKILL)
    again = yield Until(lambda observation: observation.masters > before or None, 30)
    return observation is not None and again is not None


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind is begun: its script, how many workers must train (with `final`: stand in the final view), and how many servers serve."""

    script: Callable[[Observation, random.Random], Script]
    workers: int
    joiner: bool = False
    final: bool = False
    servers: int = 0
    wanted: tuple[int, int] = (0, _MOST)
    """Numbers of servers that the job may want."""
    whole: bool = False
    """Every slot has its second copy."""


FORMS: Mapping[FaultKind, Form] = {
    FaultKind.KILL: Form(_kill, 2),
    FaultKind.PAIR: Form(_pair, 3),
    FaultKind.DONOR: Form(_donor, 2, joiner=True),
    FaultKind.JOINER: Form(_joiner, 1, joiner=True),
    FaultKind.SEALED: Form(_sealed, 3),
    FaultKind.FINAL: Form(_final, 2, final=True),
    FaultKind.DRAINING: Form(_draining, 3),
    FaultKind.HANG: Form(_hang, 2),
    FaultKind.STARTING: Form(_starting, 2),
    FaultKind.DRAIN: Form(_drain, 2),
    FaultKind.MASTER: Form(_master, 1),
    FaultKind.CHANGE: Form(_change, 2),
    FaultKind.SERVER: Form(_server, 1, servers=2),
    FaultKind.SERVERS: Form(_servers, 1, servers=2),
    FaultKind.SERVER_HANG: Form(_server_hang, 1, servers=2),
    FaultKind.SERVER_STARTING: Form(_server_starting, 1, servers=2),
    FaultKind.SERVER_DRAIN: Form(_server_drain, 1, servers=2),
    FaultKind.COPY: Form(_copy, 1, servers=3),
    FaultKind.HANDOVER: Form(_handover, 1, servers=3),
    FaultKind.PROMOTION: Form(_promotion, 1, servers=2),
    FaultKind.WORKERS: Form(_workers, 2),
    FaultKind.UNACKNOWLEDGED: Form(_unacknowledged, 1, servers=2, whole=True),
    FaultKind.SNAPSHOT: Form(_snapshot, 1, servers=2),
    FaultKind.MORE_SERVERS: Form(_more_servers, 1, servers=1, wanted=(1, _MOST - 1)),
    FaultKind.FEWER_SERVERS: Form(_fewer_servers, 1, servers=2, wanted=(_FEWEST + 1, _MOST)),
}


def possible(kind: FaultKind, observation: Observation) -> bool:
    """Tell whether a fault can begin now. Where workers train in step, at least one of them is always spared."""
    form = FORMS[kind]
    if form.final:
        return len(observation.workers("finishing")) >= form.workers
    if (
        observation.ending
        or len(observation.training) < form.workers
        or len(observation.servers) < form.servers
    ):
        return False
    status = observation.status
    if status is not None and not form.wanted[0] <= status.wanted_servers <= form.wanted[1]:
        return False
    if form.whole and (status is None or status.slots_alone):
        return False
    return bool(observation.coming) if form.joiner else True


def is_rare(kind: FaultKind) -> bool:
    """Tell whether a fault needs a moment that does not last."""
    return FORMS[kind].joiner or FORMS[kind].final
