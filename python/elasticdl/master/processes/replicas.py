"""How many processes of a role run, and when one is started again: a pure decision.

It knows processes and how they end, not the group: `master/allreduce/viewchange.py` decides who is in a view. Kills, preemptions and
evictions never count against a worker, because nothing that its program could do would prevent them; faults of the program do.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard, assert_never

from msgspec import Struct

from elasticdl.cluster.cluster import (
    EVICTED,
    NO_MEMORY,
    RELEASED,
    Blame,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.control.protocol.frozen import replace

FIRST_DELAY = 0.2
LONGEST_DELAY = 30.0
SHORT_LIFE = 10.0
"""Seconds; a worker that ends sooner, and before it has joined, is started again after a delay that doubles."""

LATE = "did not get ready in time (start_seconds)"
"""What is said of a life that was killed for it."""

ATTEMPTS = 3
"""Lives of one worker that can't be started before a job in which nothing runs yet gives up; one node may lack what others have."""

_GIB = 1 << 30
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals by which a program ends itself; all others are sent by somebody."""


class Wanted(Struct, frozen=True):
    """From now on the job wants this many workers."""

    workers: int


class Joined(Struct, frozen=True):
    """A worker is in a view: its start was no failure."""

    name: ProcessName


class Unready(Struct, frozen=True):
    """A life's program works and does not get ready: it is killed, or has ended by itself.

    Attributes:
        name: of the life.
        why: its end is a fault of the program, and this is the rest of a sentence that says so; empty: it may be the machine's.
    """

    name: ProcessName
    why: str


class Leaving(Struct, frozen=True):
    """A server empties itself before it ends: its successor is what it can hand over to, and begins now."""

    name: ProcessName


class Ending(Struct, frozen=True):
    """The last view is decided or wanted: one worker is enough to write the result.

    Attributes:
        stopping: somebody wants the end: whatever is lost, nothing is trained any more.
    """

    stopping: bool


class Over(Struct, frozen=True):
    """The job's end is journalled: nobody is started any more."""


class Tick(Struct, frozen=True):
    """Time has passed."""


Event = Wanted | Joined | Unready | Leaving | Ending | Over | Tick | ProcessEvent


class Launch(Struct, frozen=True):
    """Start this life of a worker; `memory`: bytes that it may use, 0 for what the job's settings say."""

    name: ProcessName
    memory: int = 0


class Retire(Struct, frozen=True):
    """Ask this worker to drain (SIGTERM)."""

    name: ProcessName


class GiveUp(Struct, frozen=True):
    """A worker's program has failed more often than the job allows: the job fails."""

    name: ProcessName
    reason: str


Instruction = Launch | Retire | GiveUp


class Replica(Struct, frozen=True):
    """One worker index and the lives that it has had.

    Attributes:
        life: number of the last life; names are never used again.
        running: that life has not ended.
        retired: it was asked to drain.
        joined: it has stood in a view.
        launched_at: when it was started.
        unready: why its end counts as a fault whatever its exit code is, as the rest of a sentence; empty if it does not.
        faults: lives that ended by a fault of the program.
        short: short lives in a row.
        unstarted: lives in a row that could not be started.
        due: when the next life may be started.
    """

    life: int = 0
    running: bool = False
    retired: bool = False
    joined: bool = False
    launched_at: float = 0.0
    unready: str = ""
    faults: int = 0
    short: int = 0
    unstarted: int = 0
    due: float = 0.0


NEVER = Replica()
"""An index that has had no life yet."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """All processes of a role; what is said of workers here holds for parameter servers, too.

    Attributes:
        role: of them all.
        wanted: how many the job wants; they have the indices 0 … wanted - 1.
        limit: faults per index that do not fail the job.
        replicas: by index.
        leaving: lives that empty themselves while their successors are there already.
        ran: a worker has been started, or has joined: what can't be started now could be elsewhere, or before.
        ending: see `Ending`.
        stopping: see `Ending`.
        over: see `Over`.
        memory: bytes that lives from now on may use, 0 for what the job's settings say.
        most_memory: bytes up to which `memory` may grow, 0: it may not.
    """

    wanted: int
    limit: int
    role: Role = Role.WORKER
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    leaving: frozenset[ProcessName] = frozenset()
    ran: bool = False
    ending: bool = False
    stopping: bool = False
    over: bool = False
    memory: int = 0
    most_memory: int = 0

    def running(self) -> list[ProcessName]:
        """Return the workers that run."""
        replicas = sorted(self.replicas.items())
        return sorted(
            (*self.leaving, *(self.name(index, replica) for index, replica in replicas if replica.running))
        )

    def delayed(self, now: float) -> list[tuple[ProcessName, str]]:
        """Return the lives that are not started yet because the ones before were short, with the reason for people."""
        if self.over or self.ending:
            return []
        waiting = (
            (index, replica)
            for index, replica in sorted(self.replicas.items())
            if index < self.wanted and not replica.running and replica.due > now and replica.short
        )
        return [
            (
                ProcessName(self.role, index, replica.life + 1),
                f"it starts {_delay(replica.short):.1f} s after the end of {self.name(index, replica)}, which "
                + ("could not be started" if replica.unstarted else "was short-lived"),
            )
            for index, replica in waiting
        ]

    def lives(self) -> list[ProcessName]:
        """Return the last life of each index."""
        return [self.name(index, replica) for index, replica in sorted(self.replicas.items()) if replica.life]

    def name(self, index: int, replica: Replica) -> ProcessName:
        """Return the name of an index's present life."""
        return ProcessName(self.role, index, replica.life)

    def cannot_start(self, replica: Replica) -> bool:
        """Tell whether nothing can be started at all: not one of the workers, or one of them not for the third time."""
        nowhere = all(self.replicas.get(index, Replica()).unstarted for index in range(self.wanted))
        return not self.ran and (nowhere or replica.unstarted >= ATTEMPTS)

    def _with(self, index: int, replica: Replica) -> ReplicaSet:
        return replace(self, replicas={**self.replicas, index: replica})


def recall(state: ReplicaSet, history: Iterable[ProcessEvent], names: Iterable[ProcessName]) -> ReplicaSet:
    """Return what is known after a restart of the master: the launcher's history, without its times.

    `names`: of lives that the journal tells of; the cluster may have forgotten them, and no name may be used again.
    """
    for event in history:
        if event.name.role is not state.role:
            continue
        replica = state.replicas.get(event.name.index, Replica())
        if isinstance(event, ProcessEnded):  # what an earlier life tells counts as well
            state = _with_memory(state, event)
            replica = replace(replica, faults=replica.faults + is_fault(event, state.most_memory))
        if event.name.life >= replica.life:
            lives = not isinstance(event, ProcessEnded | ProcessGone)
            replica = replace(replica, life=event.name.life, running=lives, retired=False, joined=False)
        state = state._with(event.name.index, replica)
    for name in (name for name in names if name.role is state.role):
        replica = state.replicas.get(name.index, Replica())
        if name.life > replica.life:
            state = state._with(name.index, replace(replica, life=name.life, running=False))
    return state


def decide(now: float, state: ReplicaSet, event: Event) -> tuple[ReplicaSet, tuple[Instruction, ...], str]:
    """Take an event at time `now`; return the next state, what is to be done, and why."""
    reason = ""
    match event:
        case Wanted(workers):
            state, reason = replace(state, wanted=workers), f"{workers} of role {state.role} are wanted"
        case Joined(name):
            replica = state.replicas.get(name.index)
            is_last = replica is not None and replica.life == name.life
            if is_last and replica is not None and (replica.short or not replica.joined):
                state = state._with(name.index, replace(replica, joined=True, short=0))
            # Nobody is missing or too many because of it: each view names all of its members.
            return state if state.ran else replace(state, ran=True), (), ""
        case Unready(name, why):
            replica = state.replicas.get(name.index)
            if replica is not None and replica.life == name.life and replica.running:
                state = state._with(name.index, replace(replica, unready=why))
        case Leaving(name):
            replica = state.replicas.get(name.index)
            stays = name.index < state.wanted and not state.ending
            if replica is not None and replica.running and replica.life == name.life and stays:
                state = replace(state, leaving=state.leaving | {name})
                state = state._with(name.index, replace(replica, running=False, due=now))
                reason = f"{name} leaves; its successor takes over from it"
        case Ending(stopping):
            state = replace(state, ending=True, stopping=state.stopping or stopping)
            reason = "the job is ending"
        case Over():
            state = replace(state, over=True)
        case ProcessPending(name) | ProcessStarted(name):
            state = _started(now, state, name)
            if isinstance(event, ProcessStarted) and not state.ran:
                state = replace(state, ran=True)
        case ProcessEnded() | ProcessGone():
            before = state.replicas.get(event.name.index, Replica())
            state = replace(state, leaving=state.leaving - {event.name})
            if event.name.role is not state.role or event.name.life < before.life or not before.running:
                return state, (), ""
            state, reason = _ended(now, state, before, event)
            replica = state.replicas[event.name.index]
            if _never_began(event) and state.cannot_start(replica) and not state.over:
                why = f"{event.name} can't be started: {event.text}"
                return replace(state, over=True), (GiveUp(event.name, why),), why
            if _had_most_memory(event, state) and not state.over:
                why = (
                    f"{event.name} needs more memory than oom_memory_limit allows ({state.most_memory / _GIB:.3g} GiB); "
                    "allow more, or take smaller minibatches"
                )
                return replace(state, over=True), (GiveUp(event.name, why),), why
            if replica.faults > state.limit and replica.faults > before.faults and not state.over:
                ended = before.unready or f"has ended ({cause_of(event)})"
                why = (
                    f"{event.name} {ended}: {state.role} {event.name.index} has failed {replica.faults} "
                    f"times, relaunch_on_worker_failure is {state.limit}{_advice(event)}"
                )
                return replace(state, over=True), (GiveUp(event.name, why),), why
        case Tick():
            pass
        case _:
            assert_never(event)
    # News of one process concern its index; what is due elsewhere follows with the next tick.
    indices = (
        [event.name.index]
        if isinstance(event, ProcessPending | ProcessStarted | ProcessEnded | ProcessGone)
        else None
    )
    state, instructions = _fill(now, state, indices)
    return state, instructions, reason


def cause_of(ended: ProcessEnded | ProcessGone) -> str:
    """Return how a process ended, for people: `killed by SIGKILL`, `exit code 3`, `PreemptionByScheduler: …`."""
    if isinstance(ended, ProcessGone):
        return f"{ended.node} does not answer" if ended.node else "its pod was deleted by force"
    if ended.text and ended.blame is not Blame.PROGRAM:
        return ended.text
    if ended.code is None and ended.signal is None:
        return ended.text or "nobody knows how"
    if ended.code == NO_MEMORY and ended.name.role is Role.PS:  # a program may end itself with any code
        return "out of memory"
    if ended.code == RELEASED:
        return "released"
    if ended.signal is None:
        return f"exit code {ended.code}"
    try:
        return f"killed by {signal.Signals(ended.signal).name}"
    except ValueError:
        return f"killed by signal {ended.signal}"


def is_fault(ended: ProcessEnded | ProcessGone, most_memory: int = 0) -> bool:
    """Tell whether an end counts against the program; `most_memory` as in `ReplicaSet`."""
    if isinstance(ended, ProcessGone) or ended.blame in (Blame.CLUSTER, Blame.START):
        return False
    if ended.blame is Blame.MEMORY:
        # The same program with the same memory would end in the same way.
        return not 0 < ended.memory < most_memory
    if ended.signal is not None:
        return ended.signal in _CRASHES
    return ended.code not in (RELEASED, EVICTED)


def _advice(ended: ProcessEnded | ProcessGone) -> str:
    """Return what helps a server whose memory was not enough: that of a worker depends on its program."""
    if ended.name.role is not Role.PS or isinstance(ended, ProcessGone):
        return ""
    if ended.code != NO_MEMORY and ended.blame is not Blame.MEMORY:
        return ""
    return (
        "; its part of the tables is larger than the memory that it may use: let more servers share them (--num_ps_pods), or give each "
        "more memory (in pods: --ps_resource_limit)"
    )


def _never_began(ended: ProcessEnded | ProcessGone) -> TypeGuard[ProcessEnded]:
    return isinstance(ended, ProcessEnded) and ended.blame is Blame.START


def _had_most_memory(ended: ProcessEnded | ProcessGone, state: ReplicaSet) -> bool:
    return (
        isinstance(ended, ProcessEnded)
        and ended.blame is Blame.MEMORY
        and 0 < state.most_memory <= ended.memory
    )


def _with_memory(state: ReplicaSet, ended: ProcessEnded) -> ReplicaSet:
    """Return the replica set whose next lives may use more than one that ran out of memory."""
    if ended.blame is not Blame.MEMORY or not 0 < ended.memory < state.most_memory:
        return state
    # What one worker lacks the others will lack too: they compute the same.
    more = min(state.most_memory, ended.memory * 3 // 2)
    return replace(state, memory=max(state.memory, more))


def _started(now: float, state: ReplicaSet, name: ProcessName) -> ReplicaSet:
    replica = state.replicas.get(name.index, Replica())
    if name.role is not state.role or name.life <= replica.life:
        return state  # what I have launched myself I know already
    return state._with(
        name.index, replace(replica, life=name.life, running=True, launched_at=now, joined=False)
    )


def _ended(
    now: float, state: ReplicaSet, replica: Replica, ended: ProcessEnded | ProcessGone
) -> tuple[ReplicaSet, str]:
    was_short = not replica.joined and (now - replica.launched_at < SHORT_LIFE or _never_began(ended))
    short = replica.short + 1 if was_short else 0
    delay = _delay(short)
    after = replace(
        replica,
        life=ended.name.life,
        running=False,
        retired=False,
        joined=False,
        unready="",
        faults=replica.faults + (bool(replica.unready) or is_fault(ended, state.most_memory)),
        short=short,
        unstarted=replica.unstarted + 1 if _never_began(ended) else 0,
        due=now + delay,
    )
    reason = f"{ended.name} {replica.unready or f'has ended ({cause_of(ended)})'}"
    if isinstance(ended, ProcessEnded):
        state = _with_memory(state, ended)
        if ended.blame is Blame.MEMORY and state.memory:
            reason += f"; from now on workers may use {state.memory / _GIB:.3g} GiB"
    return state._with(ended.name.index, after), reason + (
        f"; {delay:.1f} s until the next life" if delay else ""
    )


def _delay(short: int) -> float:
    """Return the seconds after which a life is started, after so many short ones in a row."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2 ** (short - 1)) if short else 0.0


def _fill(
    now: float, state: ReplicaSet, indices: list[int] | None
) -> tuple[ReplicaSet, tuple[Instruction, ...]]:
    """Start who is missing and due, retire who is too many: the highest indices; `indices`: to look at, None: at all."""
    if state.over:
        return state, ()
    if state.ending:
        # The last state may be lost with its holders: then steps are redone, by all.
        indices = None
        if not state.stopping and not state.running():
            state = replace(state, ending=False)
    instructions: list[Instruction] = []
    below = range(state.wanted) if indices is None else [i for i in indices if i < state.wanted]
    for index in (0,) if state.ending else below:
        replica = state.replicas.get(index, NEVER)
        if replica.running or replica.due > now or (state.ending and state.running()):
            continue
        replica = replace(
            replica, life=replica.life + 1, running=True, retired=False, joined=False, launched_at=now
        )
        state = state._with(index, replica)
        instructions.append(Launch(state.name(index, replica), state.memory))
    above = [i for i in (state.replicas if indices is None else indices) if i >= state.wanted]
    for index in [] if state.ending else sorted(above, reverse=True):
        replica = state.replicas.get(index, NEVER)
        if replica.running and not replica.retired:
            state = state._with(index, replace(replica, retired=True))
            instructions.append(Retire(state.name(index, replica)))
    return state, tuple(instructions)
