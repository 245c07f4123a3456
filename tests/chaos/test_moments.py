"""Faults that are aimed at a moment: who is stopped, who is killed, and that nothing counts that came too late."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessEnded, ProcessStarted, process_name
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.tools.faults import (
    FORMS,
    MASTER,
    MOMENTS,
    PS,
    FaultKind,
    Moment,
    Pause,
    Scale,
    Script,
    Send,
    Until,
    possible,
)
from elasticdl.tools.observation import Observation

SERVERS = ("ps-0-1", "ps-1-1", "ps-2-1")
WORKERS = ("worker-0-1", "worker-1-1")


def seen(step: int = 5, **changes: Any) -> Observation:
    """Return a job whose three servers serve and whose two workers train."""
    workers = [WorkerStatus(name, "serving", 1, None) for name in SERVERS]
    workers += [WorkerStatus(name, "training", 1, None) for name in WORKERS]
    status = JobStatus(
        "job", "training", "", 0, step, 0, 1, 0.5, 1.0, 10, 1.0, 1.0, 2, tuple(workers), wanted_servers=3
    )
    observation = Observation()
    for name in (*SERVERS, *WORKERS):
        observation = observation.take(ProcessStarted(process_name(name), 1))
    return observation.take(replace(status, **changes))


def killed(name: str) -> Observation:
    return seen().take(ProcessEnded(process_name(name), None, signal.SIGKILL))


def begin(kind: FaultKind) -> Script:
    return FORMS[kind].script(seen(), random.Random(1))


def verdict(script: Script, answer: Any) -> bool:
    with pytest.raises(StopIteration) as end:
        script.send(answer)
    return bool(end.value.value)


def until(request: object) -> Until:
    assert isinstance(request, Until)
    return request


def test_every_moment_has_its_kind() -> None:
    assert set(MOMENTS.values()) == set(Moment)
    assert MOMENTS.keys() <= set(PS)


def test_something_under_way_is_hit_while_the_master_stands_still() -> None:
    script = begin(FaultKind.SNAPSHOT)
    waits = until(next(script))
    assert waits.condition(seen()) is None
    assert waits.condition(seen(snapshot=3)) is True
    assert waits.condition(seen(state="stopping")) is False
    assert script.send(True) == Send(MASTER, signal.SIGSTOP)
    assert isinstance(script.send(seen(snapshot=3)), Pause)
    # The snapshot was over before the master stood still: once more.
    assert script.send(seen(snapshot=0)) == Send(MASTER, signal.SIGCONT)
    until(script.send(seen()))
    assert script.send(True) == Send(MASTER, signal.SIGSTOP)
    script.send(seen(snapshot=4))
    kill = script.send(seen(snapshot=4))
    assert isinstance(kill, Send)
    assert kill.number == signal.SIGKILL
    ended = until(script.send(seen(snapshot=4)))
    if kill.name == MASTER:
        assert ended.condition(seen()) is None
        assert ended.condition(replace(seen(), masters=2))
        assert verdict(script, True)
    else:
        assert ended.condition(killed(kill.name))
        assert script.send(True) == Send(MASTER, signal.SIGCONT)
        assert verdict(script, seen())


def test_a_moment_that_never_comes_is_no_hit() -> None:
    script = begin(FaultKind.SNAPSHOT)
    next(script)
    assert not verdict(script, None)


@pytest.mark.parametrize(
    ("kind", "first", "told", "moment"),
    [
        (FaultKind.COPY, signal.SIGKILL, "lost", {"copies": 4}),
        (FaultKind.HANDOVER, signal.SIGTERM, "leaving", {"handovers": 4}),
    ],
)
def test_slots_on_their_way_are_hit(kind: FaultKind, first: int, told: str, moment: dict[str, int]) -> None:
    script = begin(kind)
    cause = next(script)
    assert isinstance(cause, Send)
    assert cause.number == first
    heard = until(script.send(seen()))
    event = JobEvent(1.0, told, cause.name, 0, 5, "")
    assert heard.condition(seen()) is None
    assert heard.condition(seen().take(event)) == event
    waits = until(script.send(event))
    assert waits.condition(seen()) is None
    assert waits.condition(seen(**moment)) is True
    assert script.send(True) == Send(MASTER, signal.SIGSTOP)
    script.send(seen(**moment))
    kill = script.send(seen(**moment))
    assert isinstance(kill, Send)
    assert kill.name in SERVERS
    until(script.send(seen(**moment)))
    assert script.send(True) == Send(MASTER, signal.SIGCONT)
    assert verdict(script, seen())


@pytest.mark.parametrize(("step", "hits"), [(7, True), (8, False)])
def test_a_server_dies_while_its_pushes_wait_for_the_backups(step: int, hits: bool) -> None:
    """A step in between shows that somebody was acknowledged: that the others stood still is not known then."""
    script = begin(FaultKind.UNACKNOWLEDGED)
    stopped = [next(script), script.send(seen())]
    assert {one.number for one in stopped if isinstance(one, Send)} == {signal.SIGSTOP}
    assert isinstance(script.send(seen()), Pause)
    assert isinstance(script.send(seen(step=7)), Pause)
    kill = script.send(seen(step=step))
    assert isinstance(kill, Send)
    assert kill.number == signal.SIGKILL
    others = {one.name for one in stopped if isinstance(one, Send)}
    assert others | {kill.name} == set(SERVERS)
    until(script.send(seen()))
    going_on = [script.send(True), script.send(seen())]
    assert {(one.name, one.number) for one in going_on if isinstance(one, Send)} == {
        (name, signal.SIGCONT) for name in others
    }
    assert verdict(script, seen()) == hits


@pytest.mark.parametrize(("kind", "wanted"), [(FaultKind.MORE_SERVERS, 4), (FaultKind.FEWER_SERVERS, 2)])
def test_servers_are_asked_for(kind: FaultKind, wanted: int) -> None:
    script = begin(kind)
    assert next(script) == Scale(wanted)
    begun = until(script.send(seen()))
    assert begun.condition(seen()) is None
    assert begun.condition(seen(wanted_servers=wanted)) is None
    leaving = seen(wanted_servers=wanted).take(JobEvent(1.0, EventKind.LEAVING, "ps-2-1", 0, 5, ""))
    fourth = WorkerStatus("ps-3-1", "serving", 1, None)
    observation = seen(wanted_servers=wanted).take(ProcessStarted(process_name("ps-3-1"), 1))
    assert observation.status is not None
    more = observation.take(replace(observation.status, workers=(*observation.status.workers, fourth)))
    assert begun.condition(leaving if kind is FaultKind.FEWER_SERVERS else more) is True
    assert verdict(script, True)


def test_numbers_of_servers_have_bounds() -> None:
    assert possible(FaultKind.FEWER_SERVERS, seen())
    assert not possible(FaultKind.FEWER_SERVERS, seen(wanted_servers=2))
    assert possible(FaultKind.MORE_SERVERS, seen())
    assert not possible(FaultKind.MORE_SERVERS, seen(wanted_servers=5))
    assert not possible(FaultKind.UNACKNOWLEDGED, seen(slots_alone=1))
