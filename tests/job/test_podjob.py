"""What a client makes of the pods that it sees, and of a job that has failed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from elasticdl.cluster.api import Api, ApiError, Object, Unreachable
from elasticdl.errors import BadSetting
from elasticdl.job import display
from elasticdl.job.podjob import PodJob, master_state
from elasticdl.spec.machine import check_pods, check_workers


def pod(phase: str = "Pending", reason: str = "", message: str = "", **status: Any) -> Object:
    state = {"waiting": {"reason": reason, "message": message}} if reason else {}
    return {
        "metadata": {"name": "m"},
        "status": {"phase": phase, "containerStatuses": [{"state": state}], **status},
    }


def ended(message: str = "", **status: Any) -> Object:
    return pod(
        "Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 1, "message": message}}}], **status
    )


PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": ""}
FULL = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}


@pytest.mark.parametrize(
    ("masters", "said", "stuck"),
    [
        ([pod()], "", False),
        ([pod(conditions=[FULL])], "the master's pod waits: 0/2 nodes are available", False),
        ([pod(reason="ContainerCreating")], "", False),
        ([pod(reason="ErrImagePull", message="no such host")], "the master's pod waits: ErrImagePull: no such host", False),
        (
            [pod(reason="ImagePullBackOff", message="Back-off pulling image")],
            "the master's pod can't start: ImagePullBackOff: Back-off pulling image",
            True,
        ),
        ([pod(reason="ErrImageNeverPull")], "the master's pod can't start: ErrImageNeverPull", True),
        (
            [ended("Traceback\nModuleNotFoundError: No module named 'elasticdl'\n"), pod()],
            "1 master has ended by an error before saying anything (ModuleNotFoundError: No module named 'elasticdl')",
            False,
        ),
        ([ended(), ended(), ended()], "3 masters have ended by an error before saying anything", True),
        ([*[ended(conditions=[PREEMPTED])] * 5, pod()], "", False),
    ],
)  # fmt: skip
def test_why_a_master_does_not_run(masters: list[Object], said: str, stuck: bool) -> None:
    assert master_state(masters) == (said, stuck)


class Logs:
    """An API that has one log."""

    namespace = "default"

    def __init__(self, pod: str, lines: list[str], error: Exception | None = None) -> None:
        self.pod, self.lines, self.error = pod, lines, error

    def log(self, pod: str, *, last: int) -> Iterator[str]:
        if self.error:
            raise self.error
        assert pod == self.pod
        yield from self.lines[-last:]

    def list(self, kind: str, labels: str) -> tuple[list[Object], str]:
        names = {"job-0-b": "2026-01-02", "job-0-a": "2026-01-01"}
        return [{"metadata": {"name": one, "creationTimestamp": when}} for one, when in names.items()], ""


def explained(api: Logs, **summary: object) -> dict[str, Any]:
    return PodJob(cast(Api, api), "job").explained({"job": "job", "exit_code": 1, **summary})


def test_the_log_of_the_guilty_worker() -> None:
    lines = [f"line {number}" for number in range(100)]
    found = explained(Logs("job-worker-1-2", lines), steps=7, failed_worker="worker-1-2")
    assert found["log_of"] == "worker-1-2"
    assert found["log"] == lines[-20:]


def test_the_log_of_a_master_that_said_nothing() -> None:
    found = explained(Logs("job-0-b", ["the end"]))
    assert (found["log_of"], found["log"]) == ("master", ["the end"])


@pytest.mark.parametrize(
    ("api", "summary"),
    [
        (Logs("", [], Unreachable("away")), {"failed_worker": "worker-0-1"}),
        (Logs("", [], ApiError(400, "BadRequest", "waiting to start")), {"failed_worker": "worker-0-1"}),
        (Logs("", ["x"]), {"steps": 3, "failed_worker": ""}),
        (Logs("", ["x"]), {"exit_code": 0}),
        (Logs("", ["x"]), {"exit_code": 130}),
    ],
)
def test_no_log_where_there_is_none(api: Logs, summary: dict[str, object]) -> None:
    found = explained(api, **summary)
    assert "log" not in found
    assert found["job"] == "job"


def test_nothing_is_shown_twice() -> None:
    out = io.StringIO()
    traceback = "Traceback (most recent call last):\n  File x\nValueError: no"
    summary = {"traceback": traceback, "log_of": "worker-0-1", "log": ["it begins", *traceback.splitlines()]}
    display.print_log_end(summary, out)
    assert out.getvalue() == "the end of the log of worker-0-1:\n  it begins\n"
    for nothing in ({**summary, "log": traceback.splitlines()}, {"traceback": traceback}, {}):
        out = io.StringIO()
        display.print_log_end(nothing, out)
        assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("workers", "said"),
    [(1025, "at most 1,024 workers"), (1, "has a minimum of 2 workers"), (2, ""), (1024, "")],
)
def test_how_many_workers_can_be_asked_for(workers: int, said: str) -> None:
    if not said:
        check_pods(workers, 2, "--num_workers")
        return
    with pytest.raises(BadSetting, match=said):
        check_pods(workers, 2, "--num_workers")


@pytest.mark.parametrize("check", [check_pods, check_workers])
def test_a_job_is_not_asked_for_less_than_its_minimum(check: Callable[[int, int, str], None]) -> None:
    check(2, 2, "--num_workers")
    for workers, said in ((1, "has a minimum of 2 workers"), (0, "has at least 1 worker")):
        with pytest.raises(BadSetting, match=said):
            check(workers, 2, "--num_workers")
