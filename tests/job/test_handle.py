"""Jobs that Python does not wait for: found again, looked at, steered and waited for, on this machine and on Kubernetes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

import elasticdl
from elasticdl.cluster.kubernetes.api import Api, Object, Unreachable
from elasticdl.cluster.local import place as places
from elasticdl.control.protocol.status import EventKind
from elasticdl.errors import BadInput, Interrupted, JobFailed, MasterAway
from elasticdl.job import podjob
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.spec.edge import build, from_arguments
from tests.page.jobs import event

from .conftest import orphans
from .test_podjob import STATUS, Objects, in_pods
from .test_podpage import kept

ZOO = Path(__file__).parent / "zoo"
SECONDS = 120.0
T = TypeVar("T")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for jobs of this process and of those that it starts; none may be left."""
    for name, path in (("XDG_STATE_HOME", "state"), ("GO", "go"), ("TOLD", ".")):
        monkeypatch.setenv(name, str(tmp_path / path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    left = orphans(str(tmp_path / "state"))
    for process in left:
        process.kill()
    assert not left, f"processes of the job are left: {left}"


def until(ask: Callable[[], T | None]) -> T:
    """Ask until there is an answer; there is no event to wait for in another process."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.05)
    raise AssertionError("nothing came")


def training(job: elasticdl.Job, number: int) -> list[elasticdl.WorkerStatus] | None:
    """Return the workers of a job, if so many are at work."""
    found = [one for one in job.progress().workers if one.state in ("training", "evaluating")]
    return found if len(found) == number else None


def ask(page: str, path: str) -> Any:
    address, _, token = page.partition("/#token=")
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


START = """
import sys, elasticdl
job = elasticdl.train(
    model_zoo=sys.argv[1], model_def="judged.custom_model", training_data=sys.argv[2], validation_data=sys.argv[2], job_name="held",
    num_workers=2, num_epochs=0, minibatch_size=8, num_minibatches_per_task=1, evaluation_steps=100, evaluate_at_epoch_end=False,
    witness_seconds=2, wait=False,
)
print(job)
"""
FIND = """
import elasticdl
from elasticdl.job import launcher  # binds the name elasticdl.job to the package
print(elasticdl.job("held").name, elasticdl.job("held").progress().wanted_workers)
"""


def test_a_job_is_found_again_steered_and_waited_for(home: Path, iris: Path) -> None:
    (home / "go").touch()
    train = str(iris / "train")
    started = subprocess.run(
        [sys.executable, "-c", START, str(ZOO), train], capture_output=True, text=True, timeout=SECONDS
    )
    assert started.stdout == "elasticdl.job('held-1')\n", started.stderr
    job = elasticdl.job("held")  # its program has ended
    until(lambda: training(job, 2))
    assert ask(job.page, "/api/v1/status")["job"]["job_name"] == "held-1"
    job.scale(num_workers=3)
    lost = until(lambda: training(job, 3))[0]
    assert lost.pid is not None
    os.kill(lost.pid, signal.SIGKILL)
    found = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, timeout=SECONDS)
    assert found.stdout == "held-1 3\n", found.stderr
    until(lambda: None if lost in job.progress().workers else training(job, 3))
    profile = job.profile(steps=2, output=home / "profile.json")
    steps = [one for one in json.loads(profile.read_text())["traceEvents"] if one.get("cat") == "step"]
    assert {one["pid"] for one in steps} == {0, 1, 2}
    metrics = until(lambda: job.metrics or None)
    assert {"val_loss", "val_accuracy"} <= set(metrics)
    with pytest.raises(TimeoutError, match="held-1 has not ended within 0 s; it continues"):
        job.wait(timeout=0)
    assert re.search("training|evaluating", job._repr_html_())
    with pytest.raises(BadInput, match="wrker"):
        job.logs("wrker")

    job.stop()
    summary = job.wait()
    assert (summary["status"], summary["reason"]) == ("finished", "stopped by Job.stop()")
    assert summary["members"]["lost"] == 1
    assert job.wait(timeout=0) == summary
    last, curves = job.progress(), job.history
    assert (last.state, last.step) == ("finished", summary["steps"])
    assert curves.steps["loss"][-1] == summary["steps"]
    assert curves.steps["val_loss"][0] == 100
    assert {name: len(values) for name, values in curves.history.items()} == {
        name: len(steps) for name, steps in curves.steps.items()
    }
    assert job.metrics["val_loss"] == pytest.approx(curves.history["val_loss"][-1], rel=1e-5)
    assert any("has joined" in line for line in job.logs("master", lines=10_000))
    assert len(job.logs(lines=3)) == 3
    assert ask(job.page, "/api/v1/status")["job"]["state"] == "finished"
    job.stop()  # it stays as it is
    with pytest.raises(BadInput, match="has ended"):
        job.scale(num_workers=2)
    with pytest.raises(BadInput, match="has ended; only a job that runs can be profiled"):
        job.profile()


def test_a_job_that_fails_raises_what_its_program_raised(
    home: Path, iris: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "go").touch()
    (home / "fail").touch()
    job = elasticdl.train(
        model_zoo=ZOO,
        model_def="failing.custom_model",
        training_data=iris / "train",
        num_workers=1,
        wait=False,
    )
    with pytest.raises(JobFailed, match=r"the mistake of the user.*elasticdl logs failing"):
        job.wait()
    shown = capfd.readouterr()
    assert "failing.py" in shown.err
    assert shown.out == ""
    assert job.progress().state == "failed"
    assert job.metrics == {}


def test_a_job_whose_launcher_was_killed(home: Path) -> None:
    given = {"model_def": "a.b", "training_data": "x", "job_name": "gone"}
    places.create(build(from_arguments(given)))
    job = elasticdl.job("gone-1")
    with pytest.raises(JobFailed, match="its launcher was killed"):
        job.wait()
    assert job.progress().state == "killed"
    assert elasticdl.History({}, {}) == job.history
    place = places.find("gone-1")
    place.summary_path.write_text('{"status": "finished", "records_predicted": 7}')
    assert (job.progress().state, job.progress().records) == ("finished", 7)
    with pytest.raises(BadInput, match="no job is named 'gnoe-1'; did you mean gone-1\\?; there are gone-1"):
        elasticdl.job("gnoe-1")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda job: job.scale(), "num_workers=, num_ps_pods= or both"),
        (lambda job: job.logs(lines=0), "lines= is at least 1"),
    ],
)
def test_what_is_refused_without_asking(call: Callable[[elasticdl.Job], object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        call(elasticdl.Job(cast(Any, None)))


# ------------------------------------------------------------------ on Kubernetes


class Pods(Objects):
    """An API with one job, its settings, and what is asked of it."""

    def __init__(self, store: dict[str, str] | None) -> None:
        super().__init__(store=store)
        self.annotations: dict[str, str] = {}
        self.away = False

    def get(self, kind: str, name: str) -> Object:
        if self.away:
            raise Unreachable("the cluster does not answer")
        if name.endswith("-spec"):
            return {"data": {"spec.json": json.dumps(in_pods().to_json())}}
        found = super().get(kind, name)
        return {
            **found,
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"} | found.get("metadata", {}),
        }

    def has(self, kind: str, name: str) -> bool:
        if self.away:
            raise Unreachable("the cluster does not answer")
        return kind != "Job" or name == "job"

    def list(self, kind: str, labels: str = "", fields: str = "") -> tuple[list[Object], str]:
        if kind == "Job":
            return [{"metadata": {"name": "job", "creationTimestamp": "2026-01-01T00:00:00Z"}}], ""
        return super().list(kind, labels, fields)

    def patch(self, kind: str, name: str, change: Object) -> Object:
        self.annotations |= change["metadata"]["annotations"]
        return {}


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Pods:
    """A cluster in which a job trains."""
    api = Pods({"status": json.dumps(STATUS), "curves": kept(3), "told": "1"})
    told = HistoryEvent(event(950.0, EventKind.EVALUATED, step=3, values=(("val_loss", 0.25),)))
    api.events = told.to_line()
    monkeypatch.setattr("elasticdl.cluster.kubernetes.api.connect", lambda namespace: cast(Api, api))
    monkeypatch.setattr(podjob, "LOOK_SECONDS", 0.01)
    return api


def end(api: Pods, **summary: object) -> None:
    assert api.store is not None
    api.store["summary"] = json.dumps(
        {"job": "job", "status": "finished", "reason": "", "exit_code": 0, **summary}
    )


def test_a_job_in_pods(pods: Pods, capsys: pytest.CaptureFixture[str]) -> None:
    job = elasticdl.job("job", namespace="default")
    assert repr(job) == "elasticdl.job('job', namespace='default')"
    assert job.progress().step == 3
    assert job.metrics == {"val_loss": 0.25}
    assert job.history.steps["loss"] == [1, 2, 3]
    job.scale(num_workers=4)
    job.stop()
    assert pods.annotations == {"elasticdl.org/workers": "4", "elasticdl.org/stop": "stopped by Job.stop()"}
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    assert "width:50.0%" in job._repr_html_()
    assert ask(job.page, "/api/v1/status")["job"]["step"] == 3
    end(pods, steps=9, metrics={"val_loss": 0.125})
    assert job.wait()["steps"] == 9
    assert (job.progress().state, job.progress().step, job.metrics) == ("finished", 9, {"val_loss": 0.125})
    with pytest.raises(BadInput, match="has ended"):
        job.scale(num_workers=2)
    with pytest.raises(BadInput, match="only jobs on this machine can be profiled"):
        job.profile()
    assert capsys.readouterr().out == ""


def test_a_job_in_pods_that_has_not_begun_says_what_it_waits_for(pods: Pods) -> None:
    pods.store = {}
    seen = elasticdl.job("job", namespace="default").progress()
    assert (seen.state, seen.reason, seen.wanted_workers) == ("starting", "the master's pod is being made", 2)


@pytest.mark.parametrize(
    ("summary", "error"),
    [
        ({"exit_code": 1, "status": "failed", "reason": "no more data"}, JobFailed),
        ({"exit_code": 2, "status": "failed", "reason": "no more data"}, BadInput),
        ({"exit_code": 130, "status": "interrupted", "reason": "no more data"}, Interrupted),
    ],
)
def test_a_job_in_pods_that_ends_without_a_result(
    pods: Pods, summary: dict[str, object], error: type[Exception]
) -> None:
    end(pods, **summary)
    with pytest.raises(error, match="no more data"):
        elasticdl.job("job", namespace="default").wait()


def test_a_job_in_pods_that_can_not_begin_says_what_to_do(pods: Pods) -> None:
    pods.store, pods.suspended = None, True
    job = elasticdl.job("job", namespace="default")
    with pytest.raises(
        JobFailed, match=r"its submission broke off\. .*elasticdl stop job --namespace=default"
    ):
        job.wait()


def test_errors_of_a_cluster_are_those_that_python_knows(pods: Pods) -> None:
    with pytest.raises(
        BadInput, match="no job named 'jbo'; did you mean job\\?; `elasticdl list --namespace=default`"
    ):
        elasticdl.job("jbo", namespace="default")
    job = elasticdl.job("job", namespace="default")
    pods.away = True
    with pytest.raises(MasterAway, match="does not answer"):
        job.progress()
    assert "does not answer" in job._repr_html_()
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    pods.away, pods.denied = False, 403  # which says nothing about the job
    with pytest.raises(MasterAway, match="can't be looked at"):
        job.progress()
    for ask in (lambda: job.history, job.wait):
        with pytest.raises(MasterAway, match="who are you"):
            ask()
