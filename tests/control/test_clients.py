"""Commands that watch a master and ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elasticdl.control.protocol import codec
from elasticdl.control.protocol.profiling import (
    Missing,
    Phase,
    Profiled,
    Recorded,
    Refused,
    StepRecorded,
)
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.control.transport.client import JobClient
from elasticdl.control.transport.memberstream import (
    StreamOpened,
)
from elasticdl.control.transport.stream import (
    ControlServer,
    ProfileLeft,
    ProfileWanted,
    ScaleWanted,
    StopWanted,
)
from elasticdl.errors import BadSetting, MasterAway
from tests.control.streams import (
    SECONDS,
    TOKEN,
    Events,
    member,
    serve,
    status,
)


def test_clients_watch_ask_and_are_answered(address: str, close: Callable[[Any], Any]) -> None:
    here = Events()
    server = close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    with pytest.raises(MasterAway, match="starting"):
        client.status()
    first, second = (
        JobEvent(1.0, EventKind.JOINED, "worker-0-1", 1, 0, "x"),
        JobEvent(2.0, EventKind.VIEW, "", 1, 0, "y", 0.5),
    )
    server.publish(first)
    server.publish(status(3))
    assert client.status() == status(3)
    seen = client.watch()
    assert [next(seen), next(seen)] == [first, status(3)]
    server.publish(second)
    assert next(seen) == second
    later = close(JobClient(address, TOKEN)).watch(since=1.0)
    assert [next(later), next(later)] == [second, status(3)]
    server.close()
    assert list(seen) == []


def test_a_status_that_nobody_watches_is_not_encoded(
    address: str, close: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []
    encode = codec.encode_seen
    monkeypatch.setattr(codec, "encode_seen", lambda seen: (encoded.append(seen), encode(seen))[1])
    server = close(ControlServer(address, TOKEN, Events()))
    event = JobEvent(1.0, EventKind.JOINED, "worker-0-1", 1, 0, "x")
    for seen in (status(1), status(2), event):
        server.publish(seen)
    client = close(JobClient(address, TOKEN))
    watching = client.watch()
    assert [next(watching), next(watching)] == [event, status(2)]
    assert encoded == [event, status(2)]
    server.publish(status(3))
    assert next(watching) == status(3)


def test_requests_wait_for_the_answer(address: str, close: Callable[[Any], Any]) -> None:
    here = Events()
    close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(client.stop, "enough")
        wanted = here.next()
        assert isinstance(wanted, StopWanted)
        assert wanted.reason == "enough"
        assert not stopping.done()
        wanted.answer(True, "stops")
        assert stopping.result(SECONDS) == "stops"
        scaling = pool.submit(client.scale, 0)
        wanted = here.next()
        assert isinstance(wanted, ScaleWanted)
        wanted.answer(False, "at least 1 worker")
        with pytest.raises(BadSetting, match="at least 1"):
            scaling.result(SECONDS)


def test_a_profile_comes_step_by_step_and_one_who_leaves_is_told(
    address: str, close: Callable[[Any], Any]
) -> None:
    here = Events()
    close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    step = Recorded("worker-0-1", StepRecorded(1, 7, 100, 9, (Phase("ring", 101, 3),)))

    def answered(steps: int, *said: Profiled | None) -> Iterator[Recorded | Missing]:
        profile = client.profile(steps)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(next, profile)
            wanted = here.until(ProfileWanted)
            assert wanted.steps == steps
            for one in said:
                wanted.tell(one)
            yield first.result(SECONDS)
            yield from profile
        assert here.until(ProfileLeft).request == wanted.request

    assert list(answered(2, step, Missing("worker-1-1 has gone"), None)) == [
        step,
        Missing("worker-1-1 has gone"),
    ]
    with pytest.raises(BadSetting, match="profiled already"):
        list(answered(3, Refused("the job is profiled already"), None))
    leaving = client.profile(1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(next, leaving)
        wanted = here.until(ProfileWanted)
        wanted.tell(step)
        assert first.result(SECONDS) == step
    leaving.close()
    assert here.until(ProfileLeft).request == wanted.request


def test_a_lost_master_is_said(address: str, close: Callable[[Any], Any]) -> None:
    client = close(JobClient(address, TOKEN))
    with pytest.raises(MasterAway):
        client.status()
    process = serve(address)
    seen = close(JobClient(address, TOKEN)).watch()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, seen)
        member_seen = Events()
        close(member(address, member_seen))
        member_seen.until(StreamOpened)
        process.kill()
        with pytest.raises(MasterAway):
            waiting.result(SECONDS)
    process.communicate()
