"""Scripts and plan against a small model of a job: the right signals at the right moments, and no hit without evidence."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from elasticdl.cluster.cluster import RELEASED, ProcessEnded, ProcessStarted, process_name
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.errors import BadSetting
from elasticdl.tools.chaos import Plan, plan_from_flags
from elasticdl.tools.faults import GROUP, MASTER, FaultKind, Send, possible
from elasticdl.tools.observation import Observation

TICK = 0.02


@dataclass
class FakeJob:
    """Just enough of a job: workers with states, one timer queue, events only while the master is awake."""

    training: int = 4
    now: float = 100.0
    observation: Observation = field(default_factory=Observation)
    states: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    unsent: list[JobEvent] = field(default_factory=list)
    sent: list[tuple[float, Send]] = field(default_factory=list)
    joining_seconds: float = 1.0
    heal_seconds: float = 0.1
    deaf: set[int] = field(default_factory=set)
    """Signals that this job ignores."""
    view: int = 1
    seals: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.observation = replace(self.observation, seals=self.seals.__getitem__)
        for index in range(self.training):
            self.start(f"worker-{index}-1", "training")
        self.publish()

    def start(self, name: str, state: str) -> None:
        self.states[name] = state
        self.observation = self.observation.take(ProcessStarted(process_name(name), 1))

    def launch_again(self, name: str) -> None:
        front, _, life = name.rpartition("-")
        new = f"{front}-{int(life) + 1}"
        self.start(new, "starting")
        self.event(EventKind.LAUNCHED, new)
        self.after(self.joining_seconds, lambda: self.join(new))

    def join(self, name: str) -> None:
        if name in self.stopped:
            self.after(TICK, lambda: self.join(name))
            return
        if name not in self.states:
            return
        self.states[name] = "joining"
        self.event(EventKind.JOINED, name)
        self.after(0.1, lambda: self.heal(name))

    def heal(self, name: str) -> None:
        if name not in self.states:
            return
        self.view += 1
        view = self.view
        donor = next(worker for worker, state in self.states.items() if state == "training")
        self.states[name] = "healing"
        self.event(EventKind.SERVING, donor, view)
        self.after(self.heal_seconds, lambda: self.healed(name, donor, view))

    def healed(self, name: str, donor: str, view: int) -> None:
        if name not in self.states:
            return
        if donor not in self.states:
            self.after(TICK, lambda: self.heal(name))
        elif name in self.stopped:
            self.after(TICK, lambda: self.healed(name, donor, view))
        else:
            self.states[name] = "training"
            self.event(EventKind.HEALED, name, view)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, act))

    def event(self, kind: EventKind, worker: str, view: int = 0) -> None:
        self.unsent.append(JobEvent(self.now, kind, worker, view or self.view, 0, kind))

    def publish(self) -> None:
        if MASTER in self.stopped:
            return
        for event in self.unsent:
            self.observation = self.observation.take(event)
        self.unsent.clear()
        workers = tuple(WorkerStatus(name, state, 1, None) for name, state in self.states.items())
        self.observation = self.observation.take(
            JobStatus(
                "job", "training", "", self.view, 5, 0, 1, 0.5, 1.0, 10, 1.0, 1.0, self.training, workers
            )
        )

    def end(self, name: str, code: int | None, number: int | None) -> None:
        if self.states.pop(name, None) is None:
            return
        self.observation = self.observation.take(ProcessEnded(process_name(name), code, number))

    def lose(self, name: str) -> None:
        self.end(name, None, signal.SIGKILL)
        for other, state in self.states.items():
            if state == "training" and other not in self.stopped:
                self.seals[other] += 1
        self.event(EventKind.LOST, name)
        self.after(0.1, lambda: self.launch_again(name))

    def receive(self, send: Send) -> None:
        self.sent.append((self.now, send))
        if send.number in self.deaf:
            return
        match send.name, send.number:
            case "master", signal.SIGKILL:
                self.stopped.discard(MASTER)
                self.after(0.2, self.new_master)
            case name, signal.SIGKILL:
                self.after(TICK, lambda: self.lose(name))
            case name, signal.SIGSTOP:
                self.stopped.add(name)
                if name != MASTER:
                    self.after(5.0, lambda: self.evict(name))
            case name, signal.SIGCONT:
                self.stopped.discard(name)
            case name, signal.SIGTERM:
                self.states[name] = "draining"
                self.after(0.1, lambda: self.release(name))
            case _:
                raise AssertionError(send)

    def new_master(self) -> None:
        self.observation = replace(self.observation, masters=self.observation.masters + 1)

    def evict(self, name: str) -> None:
        if name in self.stopped and name in self.states:
            self.event(EventKind.REPLACED if self.states[name] == "starting" else EventKind.EVICTED, name)
            self.end(name, None, signal.SIGKILL)
            self.launch_again(name)

    def release(self, name: str) -> None:
        if MASTER in self.stopped:
            self.after(TICK, lambda: self.release(name))
            return
        self.event(EventKind.DRAINED, name)
        self.end(name, RELEASED, None)
        self.launch_again(name)

    def run(self, plan: Plan, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until and not plan.done:
            self.now += TICK
            due = [act for at, act in self.later if at <= self.now]
            self.later = [(at, act) for at, act in self.later if at > self.now]
            for act in due:
                act()
            self.publish()
            if plan.idle:
                self.observation = replace(self.observation, events=())
            sends, _ = plan.decide(self.now, self.observation)
            for send in sends:
                self.receive(send)


def one(kind: FaultKind, seed: int = 1) -> Plan:
    return Plan({kind: 1}, every=0.5, seed=seed)


DIRECT = [kind for kind in GROUP if kind not in (FaultKind.DONOR, FaultKind.JOINER, FaultKind.FINAL)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", DIRECT)
def test_each_kind_hits_a_whole_job(kind: FaultKind, seed: int) -> None:
    job, plan = FakeJob(), one(kind, seed)
    job.run(plan, 60)
    assert [fault.hit for fault in plan.injected] == [True]
    assert job.stopped - {name for name in job.stopped if name not in job.states} == set()
    assert any(state == "training" for state in job.states.values())


@pytest.mark.parametrize("joining_seconds", [2 * TICK, 0.5, 4.0])
def test_a_start_is_stopped_however_short_it_is(joining_seconds: float) -> None:
    """Others have started again before, as quickly, so that it is known when the moment is over."""
    for seed in range(8):
        job = FakeJob(joining_seconds=joining_seconds)
        job.run(Plan({FaultKind.KILL: 2}, every=3 * joining_seconds + 1, seed=seed), 300)
        plan = one(FaultKind.STARTING, seed)
        job.run(plan, 100)
        assert [fault.hit for fault in plan.injected] == [True]


def test_starts_are_stopped_at_different_moments() -> None:
    waits = set()
    for seed in range(5):
        job = FakeJob(joining_seconds=4.0)
        job.run(Plan({FaultKind.KILL: 1}, every=1.0, seed=seed), 30)
        job.run(Plan({FaultKind.DRAIN: 1}, every=12.0, seed=seed), 60)
        job.run(one(FaultKind.STARTING, seed), 100)
        (at, victim), (then, successor) = [send for send in job.sent if send[1].number != signal.SIGCONT][-2:]
        assert (victim.number, successor.number) == (signal.SIGKILL, signal.SIGSTOP)
        waits.add(round(then - at, 1))
    assert max(waits) > min(waits) + 0.5


def test_a_start_that_was_over_is_no_hit() -> None:
    """The successor ignores SIGSTOP here, so it joins."""
    job, plan = FakeJob(deaf={signal.SIGSTOP}), one(FaultKind.STARTING)
    job.run(plan, 10)
    assert plan.injected
    assert not any(fault.hit for fault in plan.injected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [FaultKind.DONOR, FaultKind.JOINER])
def test_a_heal_is_held_open(kind: FaultKind, seed: int) -> None:
    job, plan = FakeJob(), one(kind, seed)
    job.launch_again("worker-9-1")
    job.run(plan, 60)
    assert plan.injected[-1].hit
    killed = [send.name for _, send in job.sent if send.number == signal.SIGKILL]
    assert (killed[-1] == "worker-9-2") == (kind is FaultKind.JOINER)


def test_a_heal_that_is_over_is_no_hit() -> None:
    """The joiner ignores SIGSTOP here, so it has healed when the donor dies."""
    job = FakeJob(deaf={signal.SIGSTOP}, heal_seconds=TICK / 2)
    plan = one(FaultKind.DONOR)
    job.launch_again("worker-9-1")
    job.run(plan, 10)
    assert plan.injected
    assert not any(fault.hit for fault in plan.injected)


def test_a_final_view() -> None:
    job, plan = FakeJob(), one(FaultKind.FINAL)
    job.run(plan, 3)
    assert plan.injected == []
    job.states = dict.fromkeys(job.states, "finishing")
    job.run(plan, 10)
    assert [fault.hit for fault in plan.injected] == [True]


def test_a_final_view_that_was_over_is_no_hit() -> None:
    job, plan = FakeJob(), one(FaultKind.FINAL)
    job.states = dict.fromkeys(job.states, "finishing")
    job.lose = lambda name: job.end(name, None, signal.SIGKILL)  # type: ignore[method-assign]
    job.run(plan, 40)
    assert [fault.hit for fault in plan.injected][:1] == [False]


def test_two_within_a_tenth_of_a_second() -> None:
    for seed in range(20):
        job, plan = FakeJob(), one(FaultKind.PAIR, seed)
        job.run(plan, 20)
        (at, first), (then, second) = job.sent
        assert first.name != second.name
        assert then - at <= 0.1 + TICK


def test_the_master_is_held_while_a_sealed_worker_dies() -> None:
    job, plan = FakeJob(), one(FaultKind.SEALED)
    job.run(plan, 20)
    order = [(send.name == MASTER, send.number) for _, send in job.sent]
    assert order == [
        (True, signal.SIGSTOP), (False, signal.SIGKILL), (False, signal.SIGKILL), (True, signal.SIGCONT),
    ]  # fmt: skip


def test_a_kill_that_is_ignored_is_no_hit_and_leaves_nothing_stopped() -> None:
    for kind in (FaultKind.SEALED, FaultKind.DRAINING, FaultKind.CHANGE):
        job, plan = FakeJob(deaf={signal.SIGKILL}), one(kind)
        job.run(plan, 45)
        assert plan.injected
        assert not any(fault.hit for fault in plan.injected)
        plan_over = plan.give_up()
        for send in plan_over:
            job.receive(send)
        assert MASTER not in job.stopped


def test_giving_up_lets_everything_go_on() -> None:
    job, plan = FakeJob(), one(FaultKind.HANG)
    job.run(plan, 2)
    assert job.stopped
    assert plan.give_up() == [Send(name, signal.SIGCONT) for name in job.stopped]
    assert plan.idle


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        (FaultKind.KILL, 2),
        (FaultKind.PAIR, 3),
        (FaultKind.SEALED, 3),
        (FaultKind.DRAINING, 3),
        (FaultKind.HANG, 2),
    ],
)
def test_a_worker_is_always_spared(kind: FaultKind, workers: int) -> None:
    assert possible(kind, FakeJob(training=workers).observation)
    assert not possible(kind, FakeJob(training=workers - 1).observation)


def test_workers_that_evaluate_or_predict_can_be_hit() -> None:
    job = FakeJob(training=0)
    for number, state in enumerate(("evaluating", "predicting", "processing")):
        job.start(f"worker-{number}-1", state)
    job.publish()
    assert possible(FaultKind.PAIR, job.observation)


def test_a_job_that_ends_is_left_alone() -> None:
    job = FakeJob()
    assert job.observation.status is not None
    stopping = replace(job.observation, status=replace(job.observation.status, state="stopping"))
    assert not any(possible(kind, stopping) for kind in GROUP)


def test_the_same_seed_makes_the_same_faults() -> None:
    def sent(seed: int) -> list[tuple[float, Send]]:
        job = FakeJob(training=5)
        job.run(Plan(dict.fromkeys(DIRECT, 3), every=1.0, seed=seed), 600)
        return job.sent

    assert sent(4) == sent(4) != sent(5)


def test_a_whole_quota_is_filled() -> None:
    job = FakeJob(training=6)
    plan = Plan({kind: 4 for kind in GROUP if kind is not FaultKind.FINAL}, every=0.5, seed=3)
    job.run(plan, 3000)
    assert plan.done
    assert all(plan.hits(kind) == 4 for kind in GROUP if kind is not FaultKind.FINAL)


def test_each_kind_has_its_turn() -> None:
    """Also one that never hits, and takes no turn of another."""
    job = FakeJob(training=6, deaf={signal.SIGTERM})
    kinds = [kind for kind in DIRECT if kind is not FaultKind.DRAINING]
    plan = Plan(dict.fromkeys(kinds, 3), every=0.5, seed=3)
    while len(plan.injected) < 2 * len(kinds):
        job.run(plan, TICK)
    tried = Counter(fault.kind for fault in plan.injected)
    assert tried == dict.fromkeys(kinds, 2)
    assert plan.hits(FaultKind.DRAIN) == 0


def test_without_end() -> None:
    job = FakeJob()
    plan = Plan({FaultKind.KILL: None}, every=2.0, seed=0)
    job.run(plan, 60)
    assert not plan.done
    assert 15 <= plan.hits(FaultKind.KILL) <= 60


def test_the_plan_of_the_command() -> None:
    plan = plan_from_flags(["worker", "master"], stop=True, drain=True, every="500ms", count=6, seed=2)
    FakeJob(training=5).run(plan, 300)
    assert plan.done
    assert sum(fault.hit for fault in plan.injected) == 6
    wanted = {FaultKind.KILL, FaultKind.MASTER, FaultKind.HANG, FaultKind.DRAIN}
    assert {fault.kind for fault in plan.injected} <= wanted


@pytest.mark.parametrize(
    ("kill", "every", "message"),
    [
        (["server"], "2s", "--kill takes worker, ps or master; got 'server'"),
        ([], "2s", "say what to inject"),
        (["worker"], "2", "got '2'"),
        (["worker"], "0s", "got '0s'"),
        (["worker"], "-1s", "got '-1s'"),
    ],
)
def test_wrong_flags(kill: list[str], every: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        plan_from_flags(kill, stop=False, drain=False, every=every, count=None, seed=0)
