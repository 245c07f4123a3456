"""The page of a job in pods: what the command makes of the objects, without a cluster."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from elasticdl.cluster.kubernetes.api import Api, ApiError
from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.errors import JobFailed
from elasticdl.job.podjob import PodJob, Seen
from elasticdl.job.podpage import Following, PodLogs, serve_pods
from elasticdl.page.recording import Recording
from tests.page.jobs import Clock, event, status

SECONDS = 30.0


def kept(steps: int) -> str:
    clock = Clock()
    recording = Recording(900.0, clock)
    for step in range(1, steps + 1):
        clock.now += 1.0
        recording.progress(step, 1.0 / step)
    return recording.curves()


def seen(
    state: JobStatus | None, *events: Any, curves: str = "", summary: dict[str, Any] | None = None
) -> Seen:
    return Seen(state, events, summary, "", curves=curves)


def test_curves_of_the_master_take_the_place_of_those_that_were_seen() -> None:
    recording = Recording(900.0, Clock(2000.0))
    following = Following(recording)
    following.take(seen(status(2, loss=9.0)))
    following.take(seen(status(5, loss=0.2), event(1001.0, EventKind.JOINED, "worker-0-1"), curves=kept(5)))
    series = recording.series_json()["series"]
    assert [(step, value) for _, step, value in series["loss"]] == [
        (1, 1.0),
        (2, 0.5),
        (3, 0.333333),
        (4, 0.25),
        (5, 0.2),
    ]
    assert [row["name"] for row in recording.timeline_json()["rows"]] == ["worker-0"]
    following.take(seen(status(6, loss=0.1), curves=kept(5)))  # the same as before: nothing is forgotten
    assert recording.series_json()["series"]["loss"][-1][1:] == (6, 0.1)


def test_curves_that_can_not_be_read_change_nothing() -> None:
    recording = Recording(900.0, Clock())
    following = Following(recording)
    following.take(seen(status(2, loss=9.0)))
    following.take(seen(None, curves='{"format": 99}'))
    assert recording.series_json()["series"]["loss"] == [(1000.0, 2, 9.0)]


class SomePods:
    """A job that is seen in turns, the last one for ever."""

    name = "job"

    def __init__(self, *turns: Seen) -> None:
        self.turns = list(turns)
        self.last = threading.Event()

    def submitted_at(self) -> float:
        return 900.0

    def look(self) -> Seen:
        if len(self.turns) == 1:
            self.last.set()
            return replace(self.turns[0], events=())
        return self.turns.pop(0)

    def processes(self) -> Sequence[str]:
        return ["master", "worker-0-1"]

    def log_tail(self, process: str, lines: int) -> Sequence[str]:
        return [f"{process} says", "something"][-lines:]


def test_the_command_serves_what_it_sees() -> None:
    summary = {"status": "finished", "reason": "", "exit_code": 0}
    first = seen(status(3), event(1001.0, EventKind.NOTE, text="indexing"))
    pods = SomePods(first, seen(status(9, state="finished"), summary=summary))
    said: list[str] = []

    def look_at_it() -> None:
        address, _, token = said[0].partition("/#token=")

        def ask(path: str) -> Any:
            request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.load(answer)

        assert pods.last.wait(SECONDS)
        while ask("/api/v1/status")["job"]["state"] != "finished":
            pass
        assert ask("/api/v1/logs?process=worker-0-1&lines=1")["lines"] == ["something"]
        assert ask("/api/v1/logs")["processes"] == ["master", "worker-0-1"]
        with urllib.request.urlopen(f"{address}/", timeout=SECONDS) as answer:
            assert token not in answer.read().decode()

    serve_pods(cast(PodJob, pods), said.append, look_at_it)
    assert said[1:] == ["the page is served until Ctrl-C"]


class Forbidden:
    """An API that shows no pods."""

    namespace = "default"

    def list(self, kind: str, labels: str) -> tuple[list[Any], str]:
        raise ApiError(403, "Forbidden", "pods is forbidden")


def test_logs_that_may_not_be_read_say_so() -> None:
    logs = PodLogs(PodJob(cast(Api, Forbidden()), "job"))
    with pytest.raises(JobFailed, match="forbidden"):
        logs.processes()
    with pytest.raises(JobFailed, match="forbidden"):
        logs.tail("worker-0-1", 10)
