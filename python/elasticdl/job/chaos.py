"""Chaos: faults injected into a running local job, by a seeded plan that reacts to what the job is seen to do.

Each kind of fault is a script that waits for a moment, sends signals, and in the end says whether it hit what it was meant to hit: a
donor killed after its heal was over proves nothing and is not counted. Scripts and plan are pure: time and sights in, signals out.
`inject` is the thin shell, with two sources that fail independently: the master (what the job does) and the launcher (which process
has ended, and how). Moments too short to catch are held open by stopping the process that would end them, and only for that long.
"""

from __future__ import annotations

import contextlib
import math
import queue
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from elasticdl.cluster.cluster import (
    ProcessEnded,
    ProcessName,
    ProcessStarted,
    Role,
    process_name,
)
from elasticdl.control.status import JobEvent, JobStatus
from elasticdl.errors import BadSetting, MasterAway
from elasticdl.spec.place import JobPlace

if TYPE_CHECKING:
    from elasticdl.cluster.local import LocalCluster

_SETTLE_SECONDS = 0.25
"""How long a stopped master leaves the others to notice a death: a broken connection is seen within milliseconds."""

_SEAL_SECONDS = 10.0
"""Longest wait for a seal: a member that computes sees the broken connection when it comes to its ring."""

_PAIR_SECONDS = 0.1
_PATIENCE_SECONDS = 180.0
"""For what takes a process's start: imports and a first trace on a busy machine."""

_START_SECONDS = 10.0
_LOOK_SECONDS = 0.01


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
    DRAIN = "a drain"
    MASTER = "the master at a random moment"
    CHANGE = "the master during a view change"


# ------------------------------------------------------------------ what is seen


def _no_seals(_worker: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a job at one moment.

    Attributes:
        status: the master's last word, None before the first.
        live: workers whose process runs, by the launcher.
        ended: per worker that has ended, (exit code, signal): one of them is None.
        masters: lives of the master so far.
        events: what the master told since the fault under way began, in order.
        seals: how many views a worker has sealed, by its own log: what one says to a stopped master is lost when it dies.
    """

    status: JobStatus | None = None
    live: frozenset[str] = frozenset()
    ended: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    masters: int = 1
    events: tuple[JobEvent, ...] = ()
    seals: Callable[[str], int] = _no_seals

    def take(self, seen: JobStatus | JobEvent | ProcessStarted | ProcessEnded) -> Sight:
        """Return the sight with one thing more."""
        match seen:
            case JobStatus():
                return replace(self, status=seen)
            case JobEvent():
                return replace(self, events=(*self.events, seen))
            case ProcessStarted(name):
                return replace(self, live=self.live | {str(name)})
            case ProcessEnded(name, code, number):
                return replace(
                    self, live=self.live - {str(name)}, ended={**self.ended, str(name): (code, number)}
                )
            case _:
                assert_never(seen)

    def workers(self, *states: str) -> list[str]:
        """Return the live workers that the master last saw in one of these states, in order of their names."""
        if self.status is None:
            return []
        return sorted(
            worker.name
            for worker in self.status.workers
            if worker.state in states and worker.name in self.live
        )

    def killed(self, worker: str) -> bool:
        """Tell whether a worker's process was ended by SIGKILL."""
        return self.ended.get(worker) == (None, signal.SIGKILL)

    def heard(self, *kinds: str, worker: str = "") -> JobEvent | None:
        """Return the first event of these kinds (about a worker)."""
        for event in self.events:
            if event.kind in kinds and worker in ("", event.worker):
                return event
        return None

    @property
    def training(self) -> list[str]:
        """Return the live workers that train."""
        return self.workers("training")

    @property
    def coming(self) -> list[str]:
        """Return the live workers that are on their way into the group."""
        return self.workers("starting", "joining")

    @property
    def ending(self) -> bool:
        """Tell whether the job is about to end: faults that need it to go on come too late."""
        status = self.status
        return status is not None and (
            status.state in ("stopping", "finished", "failed") or bool(self.workers("finishing"))
        )


# ------------------------------------------------------------------ scripts


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to a process; `master` is the current life of the master."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until the condition returns something else than None; that is the answer, None if the time is over before."""

    condition: Callable[[Sight], Any]
    seconds: float


Request = Send | Pause | Until
Script = Generator[Request, Any, bool]
"""Yields requests, gets a sight for `Send` and `Pause` and the condition's answer for `Until`; returns whether it hit."""

MASTER = "master"


def _kill(sight: Sight, dice: random.Random) -> Script:
    victim = dice.choice(sight.training)
    yield Send(victim, signal.SIGKILL)
    return (yield Until(lambda sight: sight.killed(victim) or None, 10)) is not None


def _pair(sight: Sight, dice: random.Random) -> Script:
    first, second = dice.sample(sight.training, 2)
    yield Send(first, signal.SIGKILL)
    yield Pause(dice.uniform(0, 0.8 * _PAIR_SECONDS))
    yield Send(second, signal.SIGKILL)
    both = yield Until(lambda sight: (sight.killed(first) and sight.killed(second)) or None, 10)
    return both is not None


def _heal(sight: Sight, dice: random.Random, victim_is_donor: bool) -> Script:
    """Stop a worker that is about to join, wait until a donor serves it, and kill one of the two."""
    joiner = dice.choice(sight.coming)

    def arrived(sight: Sight) -> str | None:
        if joiner in sight.ended or sight.ending:
            return "ended"
        state = next((w.state for w in sight.status.workers if w.name == joiner), "") if sight.status else ""
        return None if state in ("", "starting") else state

    if (yield Until(arrived, _PATIENCE_SECONDS)) not in ("joining", "healing"):
        return False
    yield Send(joiner, signal.SIGSTOP)
    serving = yield Until(lambda sight: sight.heard("serving"), 10)
    if serving is None:
        return False
    victim = serving.worker if victim_is_donor else joiner
    yield Send(victim, signal.SIGKILL)
    if (yield Until(lambda sight: sight.killed(victim) or None, 10)) is None:
        return False
    # the view was the joiner's, and it had not healed in it when the victim died
    sight = yield Pause(_SETTLE_SECONDS)
    return not any(
        event.kind == "healed" and event.worker == joiner and event.view == serving.view
        for event in sight.events
    )


def _donor(sight: Sight, dice: random.Random) -> Script:
    return (yield from _heal(sight, dice, victim_is_donor=True))


def _joiner(sight: Sight, dice: random.Random) -> Script:
    return (yield from _heal(sight, dice, victim_is_donor=False))


def _sealed(sight: Sight, dice: random.Random) -> Script:
    """Without a master nobody gets a next view: who has sealed waits, and is killed."""
    first, second = dice.sample(sight.training, 2)
    before = sight.seals(second)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(first, signal.SIGKILL)
    sealed = yield Until(lambda sight: sight.seals(second) > before or None, _SEAL_SECONDS)
    yield Send(second, signal.SIGKILL)
    killed = yield Until(lambda sight: sight.killed(second) or None, 10)
    yield Send(MASTER, signal.SIGCONT)
    return sealed is not None and killed is not None


def _final(sight: Sight, dice: random.Random) -> Script:
    victim = dice.choice(sight.workers("finishing"))
    yield Send(victim, signal.SIGKILL)
    yield Until(lambda sight: sight.killed(victim) or None, 10)
    # with the result journalled the view is over, and the kill came too late
    return (yield Until(lambda sight: sight.heard("lost", "finished", worker=victim), 30)) is not None


def _draining(sight: Sight, dice: random.Random) -> Script:
    """Without a master nobody is released: the one drains while the other dies."""
    leaver, victim = dice.sample(sight.training, 2)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(leaver, signal.SIGTERM)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    yield Send(victim, signal.SIGKILL)
    sight = yield Until(lambda sight: sight if sight.killed(victim) else None, 10)
    drained_alive = sight is not None and leaver in sight.live
    yield Send(MASTER, signal.SIGCONT)
    left = yield Until(lambda sight: sight.heard("drained", worker=leaver), 30)
    return drained_alive and left is not None


def _hang(sight: Sight, dice: random.Random) -> Script:
    victim = dice.choice(sight.training)
    yield Send(victim, signal.SIGSTOP)
    gone = yield Until(lambda sight: sight.heard("evicted", "lost", worker=victim), _PATIENCE_SECONDS)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    yield Send(victim, signal.SIGCONT)
    return gone is not None


def _drain(sight: Sight, dice: random.Random) -> Script:
    leaver = dice.choice(sight.training)
    yield Send(leaver, signal.SIGTERM)
    released = yield Until(lambda sight: sight.ended.get(leaver), 30)
    told = yield Until(lambda sight: sight.heard("drained", worker=leaver), 10)
    return bool(released == (0, None) and told is not None)


def _master(sight: Sight, dice: random.Random) -> Script:
    before = sight.masters
    yield Send(MASTER, signal.SIGKILL)
    return (yield Until(lambda sight: sight.masters > before or None, 30)) is not None


def _change(sight: Sight, dice: random.Random) -> Script:
    """Kill the master after a death that calls for a new view, and before it has decided one."""
    before = sight.masters
    victim = dice.choice(sight.training)
    yield Send(MASTER, signal.SIGSTOP)
    yield Send(victim, signal.SIGKILL)
    yield Pause(dice.uniform(0, _SETTLE_SECONDS))
    sight = yield Until(lambda sight: sight if sight.killed(victim) else None, 10)
    yield Send(MASTER, signal.SIGKILL)
    again = yield Until(lambda sight: sight.masters > before or None, 30)
    return sight is not None and again is not None


@dataclass(frozen=True, slots=True)
class _Form:
    """How a kind is begun: its script, and how many workers must train (with `final`: stand in the final view)."""

    script: Callable[[Sight, random.Random], Script]
    workers: int
    joiner: bool = False
    final: bool = False


_FORMS: Mapping[FaultKind, _Form] = {
    FaultKind.KILL: _Form(_kill, 2),
    FaultKind.PAIR: _Form(_pair, 3),
    FaultKind.DONOR: _Form(_donor, 2, joiner=True),
    FaultKind.JOINER: _Form(_joiner, 1, joiner=True),
    FaultKind.SEALED: _Form(_sealed, 3),
    FaultKind.FINAL: _Form(_final, 2, final=True),
    FaultKind.DRAINING: _Form(_draining, 3),
    FaultKind.HANG: _Form(_hang, 2),
    FaultKind.DRAIN: _Form(_drain, 2),
    FaultKind.MASTER: _Form(_master, 1),
    FaultKind.CHANGE: _Form(_change, 2),
}


def possible(kind: FaultKind, sight: Sight) -> bool:
    """Tell whether a fault can begin now. At least one worker that trains is always spared."""
    form = _FORMS[kind]
    if form.final:
        return len(sight.workers("finishing")) >= form.workers
    if sight.ending or len(sight.training) < form.workers:
        return False
    return bool(sight.coming) if form.joiner else True


def _rare(kind: FaultKind) -> bool:
    return _FORMS[kind].joiner or _FORMS[kind].final


# ------------------------------------------------------------------ the plan


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault that is over.

    Attributes:
        kind: what it was.
        hit: whether it was observed to hit what it was meant to hit.
        seconds: how long its script took.
    """

    kind: FaultKind
    hit: bool
    seconds: float


class _Fault:
    """A script under way."""

    def __init__(self, kind: FaultKind, now: float, sight: Sight, dice: random.Random) -> None:
        self.kind = kind
        self.began = now
        self.stopped: dict[str, None] = {}
        self._script = _FORMS[kind].script(sight, dice)
        self._request: Request | None = None
        self._since = now

    def advance(self, now: float, sight: Sight) -> tuple[list[Send], bool | None]:
        """Go on as far as possible: signals to be sent now, and the script's verdict once it is over."""
        sends: list[Send] = []
        while True:
            match self._request:
                case None:
                    answer: Any = None
                case Send():
                    answer = sight
                case Pause(seconds):
                    if now < self._since + seconds:
                        return sends, None
                    answer = sight
                case Until(condition, seconds):
                    answer = condition(sight)
                    if answer is None and now < self._since + seconds:
                        return sends, None
            try:
                self._request = self._script.send(answer)
            except StopIteration as end:
                sends += [Send(name, signal.SIGCONT) for name in self.stopped]
                self.stopped.clear()
                return sends, bool(end.value)
            self._since = now
            if isinstance(self._request, Send):
                self._note(self._request)
                sends.append(self._request)
            elif isinstance(self._request, Pause) and sends:
                return sends, None  # what was asked for happens before time passes

    def _note(self, send: Send) -> None:
        if send.number == signal.SIGSTOP:
            self.stopped[send.name] = None
        elif send.number in (signal.SIGCONT, signal.SIGKILL):
            self.stopped.pop(send.name, None)


class Plan:
    """Which fault comes next, and when; every choice comes from the seed and from what is seen.

    One fault at a time: the next one begins when the script of the last one is over and some time has passed, as soon as a
    wanted kind is possible.
    """

    def __init__(
        self, quota: Mapping[FaultKind, int | None], every: float, seed: int, most: int | None = None
    ) -> None:
        """Plan faults.

        Args:
            quota: how many hits of each kind are wanted; None: without end.
            every: mean seconds between the begins of two faults.
            seed: of all choices.
            most: hits after which the plan is done in any case; None: no limit.
        """
        self._quota = dict(quota)
        self._every = every
        self._most = most
        self._dice = random.Random(seed)
        self._fault: _Fault | None = None
        self._next_at: float | None = None
        self.injected: list[Injected] = []

    @property
    def idle(self) -> bool:
        """Tell whether no fault is under way."""
        return self._fault is None

    @property
    def done(self) -> bool:
        """Tell whether all wanted faults have hit."""
        return self.idle and not self._wanted()

    def hits(self, kind: FaultKind) -> int:
        """Return how many faults of a kind have hit."""
        return sum(fault.hit for fault in self.injected if fault.kind is kind)

    def decide(self, now: float, sight: Sight) -> tuple[list[Send], str | None]:
        """Return the signals to send now, and a sentence when a fault begins or ends."""
        if self._fault is not None:
            return self._advance(now, sight)
        if self._next_at is None:
            self._next_at = now + self._gap()
        kinds = [kind for kind in self._wanted() if possible(kind, sight)]
        if now < self._next_at:
            kinds = [kind for kind in kinds if _rare(kind)]  # such a moment does not wait
        if not kinds:
            return [], None
        kind = self._choose(kinds)
        self._next_at = now + self._gap()
        self._fault = _Fault(kind, now, sight, self._dice)
        sends, _ = self._advance(now, sight)
        targets = ", ".join(f"{signal.Signals(send.number).name} {send.name}" for send in sends)
        return sends, f"{kind}: {targets}" if targets else f"{kind}: waits for its moment"

    def give_up(self) -> list[Send]:
        """End the fault under way as a miss, and let everything go on that it had stopped."""
        fault, self._fault = self._fault, None
        return [] if fault is None else [Send(name, signal.SIGCONT) for name in fault.stopped]

    def _advance(self, now: float, sight: Sight) -> tuple[list[Send], str | None]:
        fault = self._fault
        assert fault is not None
        sends, hit = fault.advance(now, sight)
        if hit is None:
            return sends, None
        self._fault = None
        self.injected.append(Injected(fault.kind, hit, now - fault.began))
        return sends, f"{fault.kind}: {'hit' if hit else 'missed'} ({now - fault.began:.2f} s)"

    def _wanted(self) -> list[FaultKind]:
        if self._most is not None and sum(fault.hit for fault in self.injected) >= self._most:
            return []
        return [kind for kind, most in self._quota.items() if most is None or self.hits(kind) < most]

    def _choose(self, kinds: Sequence[FaultKind]) -> FaultKind:
        """Prefer what needs a rare moment, then what is most behind."""
        choice = [kind for kind in kinds if _rare(kind)] or list(kinds)
        left = [most - self.hits(kind) if (most := self._quota[kind]) is not None else 1 for kind in choice]
        # a group that is large enough for the demanding kinds is a chance too
        weights = [many * _FORMS[kind].workers ** 3 for kind, many in zip(choice, left, strict=True)]
        return self._dice.choices(choice, weights=weights)[0]

    def _gap(self) -> float:
        return self._every * self._dice.uniform(0.5, 1.5)


def plan_from_flags(
    kill: Sequence[str], stop: bool, drain: bool, every: str, count: int | None, seed: int
) -> Plan:
    """Return the plan of `elasticdl chaos`.

    Args:
        kill: whom to SIGKILL: `worker`, `master` or both.
        stop: stop a worker (SIGSTOP) for longer than the group waits for it, then let it go on.
        drain: ask a worker to leave (SIGTERM).
        every: mean time between two faults, such as `2s` or `500ms`.
        count: end after so many hits; None: when the job ends.
        seed: of all choices.

    Raises BadSetting.
    """
    kinds = {"worker": FaultKind.KILL, "master": FaultKind.MASTER}
    for role in kill:
        if role not in kinds:
            raise BadSetting(f"--kill takes worker or master; got {role!r}")
    wanted = [kinds[role] for role in kill]
    wanted += [FaultKind.HANG] * stop + [FaultKind.DRAIN] * drain
    if not wanted:
        raise BadSetting("say what to inject: --kill worker, --kill master, --stop or --drain")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", every)
    seconds = float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[match[2]] if match else 0.0
    if not seconds:
        raise BadSetting(f"--every takes a time such as 2s, 500ms or 1m; got {every!r}")
    return Plan(dict.fromkeys(wanted), seconds, seed, count)


# ------------------------------------------------------------------ the shell


def _seals(place: JobPlace, worker: str) -> int:
    try:
        return (place.path / "logs" / f"{worker}.log").read_text(errors="replace").count(" sealed: ")
    except FileNotFoundError:
        return 0


def inject(place: JobPlace, plan: Plan, tell: Callable[[str], None], until: float = math.inf) -> None:
    """Carry out a plan on a running job until it is done, the job has ended or the time is over.

    Args:
        place: the job.
        plan: what to do; how it went stands in `plan.injected`.
        tell: called with a sentence when a fault begins or ends.
        until: the latest end, by the monotonic clock.

    Raises BadSetting if the job does not run.
    """
    token = place.token()
    cluster = _connect(place, token)
    news: queue.SimpleQueue[JobStatus | JobEvent | ProcessStarted | ProcessEnded | None] = queue.SimpleQueue()
    ended = threading.Event()
    watchers = [
        threading.Thread(target=_watch_processes, args=(cluster, news), name="chaos processes", daemon=True),
        threading.Thread(
            target=_watch_job, args=(place, token, news, ended), name="chaos events", daemon=True
        ),
    ]
    for watcher in watchers:
        watcher.start()
    sight = Sight(masters=_masters(place), seals=lambda worker: _seals(place, worker))
    try:
        while not plan.done and time.monotonic() < until:
            sight, over = _look(sight, news)
            if over:
                return
            masters = _masters(place)
            if masters != sight.masters:
                sight = replace(sight, masters=masters)
            was_idle = plan.idle
            if was_idle and sight.events:
                sight = replace(sight, events=())  # what happens before a fault is no evidence for it
            sends, sentence = plan.decide(time.monotonic(), sight)
            for send in sends:
                _carry_out(cluster, send, masters)
            if sentence is not None:
                tell(sentence)
    finally:
        for send in plan.give_up():
            with contextlib.suppress(OSError):
                _carry_out(cluster, send, _masters(place))
        ended.set()
        cluster.close()


def _connect(place: JobPlace, token: bytes) -> LocalCluster:
    """Connect to the launcher, which may have been started a moment ago."""
    from elasticdl.cluster.local import LocalCluster

    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            return LocalCluster(place.launcher_address, token)
        except OSError:
            if time.monotonic() > until or not place.running():
                raise BadSetting(f"the job {place.name} does not run") from None
            time.sleep(_LOOK_SECONDS)


def _look(sight: Sight, news: queue.SimpleQueue[Any]) -> tuple[Sight, bool]:
    """Take in what has come, waiting a moment for the first; True: the job has ended."""
    try:
        seen = news.get(timeout=_LOOK_SECONDS)
        while True:
            if seen is None:
                return sight, True
            sight = sight.take(seen)
            seen = news.get_nowait()
    except queue.Empty:
        return sight, False


def _carry_out(cluster: LocalCluster, send: Send, masters: int) -> None:
    name = ProcessName(Role.MASTER, 0, masters) if send.name == MASTER else process_name(send.name)
    with contextlib.suppress(OSError):  # the launcher has gone: so has the job, and the next look says so
        cluster.signal(name, send.number)


def _masters(place: JobPlace) -> int:
    """Return how many lives the master has had: each has a log of its own."""
    return max(1, sum(1 for _ in place.logs.glob("master-0-*.log")))


def _watch_processes(cluster: LocalCluster, news: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed: by the launcher's end, or by ours
        while True:
            for event in cluster.events(1.0):
                news.put(event)
    news.put(None)


def _watch_job(place: JobPlace, token: bytes, news: queue.SimpleQueue[Any], ended: threading.Event) -> None:
    from elasticdl.control.client import JobClient

    since = time.time()
    while not ended.is_set():
        try:
            with JobClient(place.control_address, token) as client:
                for seen in client.watch(since):
                    if isinstance(seen, JobEvent):
                        since = max(since, seen.time)
                    news.put(seen)
        except MasterAway:
            ended.wait(_LOOK_SECONDS)
