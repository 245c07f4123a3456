"""Chaos: faults injected into a running local job, by a seeded plan that reacts to what the job is seen to do.

Each kind of fault is a script (`faults.py`), and the plan says which comes next. Both are pure: time and sights in, signals out.
`inject` is the thin runner, with two sources that fail independently: the master (what the job does) and the launcher (which process
has ended, and how).
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.cluster import (
    ProcessEnded,
    ProcessName,
    ProcessStarted,
    Role,
    process_name,
)
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.errors import BadSetting, MasterAway
from elasticdl.tools.faults import (
    FORMS,
    MASTER,
    FaultKind,
    Pause,
    Request,
    Scale,
    Send,
    Until,
    is_rare,
    possible,
)
from elasticdl.tools.observation import Observation

if TYPE_CHECKING:
    from elasticdl.cluster.local.localcluster import LocalCluster

_START_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_AWAY_SECONDS = 60.0
"""Longest time until the next master answers, on a machine on which everything takes long."""


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

    def __init__(self, kind: FaultKind, now: float, observation: Observation, dice: random.Random) -> None:
        self.kind = kind
        self.began = now
        self.stopped: dict[str, None] = {}
        self._script = FORMS[kind].script(observation, dice)
        self._request: Request | None = None
        self._since = now

    def advance(self, now: float, observation: Observation) -> tuple[list[Send | Scale], bool | None]:
        """Go on as far as possible: what is to be done now, and the script's verdict once it is over."""
        sends: list[Send | Scale] = []
        while True:
            match self._request:
                case None:
                    answer: Any = None
                case Send() | Scale():
                    answer = observation
                case Pause(seconds):
                    if now < self._since + seconds:
                        return sends, None
                    answer = observation
                case Until(condition, seconds):
                    answer = condition(observation)
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
            elif isinstance(self._request, Scale):
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

    def decide(self, now: float, observation: Observation) -> tuple[list[Send | Scale], str | None]:
        """Return what is to be done now, and a sentence when a fault begins or ends."""
        if self._fault is not None:
            return self._advance(now, observation)
        if self._next_at is None:
            self._next_at = now + self._gap()
        kinds = [kind for kind in self._wanted() if possible(kind, observation)]
        if now < self._next_at:
            kinds = [kind for kind in kinds if is_rare(kind)]  # such a moment does not wait
        if not kinds:
            return [], None
        kind = self._choose(kinds)
        self._next_at = now + self._gap()
        self._fault = _Fault(kind, now, observation, self._dice)
        sends, _ = self._advance(now, observation)
        targets = ", ".join(map(_sentence, sends))
        return sends, f"{kind}: {targets}" if targets else f"{kind}: waits for its moment"

    def give_up(self) -> list[Send]:
        """End the fault under way as a miss, and let everything go on that it had stopped."""
        fault, self._fault = self._fault, None
        return [] if fault is None else [Send(name, signal.SIGCONT) for name in fault.stopped]

    def _advance(self, now: float, observation: Observation) -> tuple[list[Send | Scale], str | None]:
        fault = self._fault
        assert fault is not None
        sends, hit = fault.advance(now, observation)
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
        """Prefer what needs a rare moment, then what was tried least often, so that each kind has its turn, then what is most behind."""
        choice = [kind for kind in kinds if is_rare(kind)] or list(kinds)
        tried = Counter(fault.kind for fault in self.injected)
        fewest = min(tried[kind] for kind in choice)
        choice = [kind for kind in choice if tried[kind] == fewest]
        left = [most - self.hits(kind) if (most := self._quota[kind]) is not None else 1 for kind in choice]
        # a group that is large enough for the demanding kinds is a chance too
        weights = [many * FORMS[kind].workers ** 3 for kind, many in zip(choice, left, strict=True)]
        return self._dice.choices(choice, weights=weights)[0]

    def _gap(self) -> float:
        return self._every * self._dice.uniform(0.5, 1.5)


def _sentence(send: Send | Scale) -> str:
    if isinstance(send, Scale):
        return f"{send.servers} parameter servers"
    return f"{signal.Signals(send.number).name} {send.name}"


def plan_from_flags(
    kill: Sequence[str], stop: bool, drain: bool, every: str, count: int | None, seed: int
) -> Plan:
    """Return the plan of `elasticdl chaos`.

    Args:
        kill: whom to SIGKILL: `worker`, `ps`, `master`.
        stop: stop a worker (SIGSTOP) for longer than the group waits for it, then let it go on.
        drain: ask a worker to leave (SIGTERM).
        every: mean time between two faults, such as `2s` or `500ms`.
        count: end after so many hits; None: when the job ends.
        seed: of all choices.

    Raises BadSetting.
    """
    kinds = {"worker": FaultKind.KILL, "master": FaultKind.MASTER, "ps": FaultKind.SERVER}
    for role in kill:
        if role not in kinds:
            raise BadSetting(f"--kill takes worker, ps or master; got {role!r}")
    wanted = [kinds[role] for role in kill]
    wanted += [FaultKind.HANG] * stop + [FaultKind.DRAIN] * drain
    if not wanted:
        raise BadSetting("say what to inject: --kill worker, --kill master, --stop or --drain")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", every)
    seconds = float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[match[2]] if match else 0.0
    if not seconds:
        raise BadSetting(f"--every takes a time such as 2s, 500ms or 1m; got {every!r}")
    return Plan(dict.fromkeys(wanted), seconds, seed, count)


# ------------------------------------------------------------------ the runner


def _seals(place: JobPlace, worker: str) -> int:
    try:
        return (place.path / "logs" / f"{worker}.log").read_text(errors="replace").count(" sealed: ")
    except FileNotFoundError:
        return 0


def inject(place: JobPlace, plan: Plan, tell: Callable[[str], None], until: float = math.inf) -> None:
    """Carry out a plan on a running job until it is done, the job has ended or the time is over.

    Args:
        place: the job.
        plan: what to do; how it went is in `plan.injected`.
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
    observation = Observation(masters=_masters(place), seals=lambda worker: _seals(place, worker))
    try:
        while not plan.done and time.monotonic() < until:
            observation, over = _look(observation, news)
            if over:
                return
            masters = _masters(place)
            if masters != observation.masters:
                observation = replace(observation, masters=masters)
            was_idle = plan.idle
            if was_idle and observation.events:
                observation = replace(
                    observation, events=()
                )  # what happens before a fault is no evidence for it
            sends, sentence = plan.decide(time.monotonic(), observation)
            for send in sends:
                if isinstance(send, Scale):
                    arguments = (place, token, send.servers)
                    threading.Thread(target=_scale, args=arguments, name="chaos scale", daemon=True).start()
                else:
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
    from elasticdl.cluster.local.localcluster import LocalCluster

    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            return LocalCluster(place.launcher_address, token)
        except OSError:
            if time.monotonic() > until or not place.running():
                raise BadSetting(f"the job {place.name} does not run") from None
            time.sleep(_LOOK_SECONDS)


def _look(observation: Observation, news: queue.SimpleQueue[Any]) -> tuple[Observation, bool]:
    """Take in what has come, waiting a moment for the first; True: the job has ended."""
    try:
        seen = news.get(timeout=_LOOK_SECONDS)
        while True:
            if seen is None:
                return observation, True
            observation = observation.take(seen)
            seen = news.get_nowait()
    except queue.Empty:
        return observation, False


def _carry_out(cluster: LocalCluster, send: Send, masters: int) -> None:
    name = ProcessName(Role.MASTER, 0, masters) if send.name == MASTER else process_name(send.name)
    with contextlib.suppress(OSError):  # the launcher has gone: so has the job, and the next look says so
        cluster.signal(name, send.number)


def _scale(place: JobPlace, token: bytes, servers: int) -> None:
    """Ask for another number of servers; what comes of it is seen in the status."""
    from elasticdl.control.transport.client import JobClient

    until = time.monotonic() + _AWAY_SECONDS
    with contextlib.suppress(BadSetting), JobClient(place.control_address, token) as client:
        while time.monotonic() < until:
            try:
                client.scale(None, servers)
                return
            except MasterAway:  # the one that is asked may have been killed a moment ago
                time.sleep(_LOOK_SECONDS)


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
    from elasticdl.control.transport.client import JobClient

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
