"""Submitting: what is refused before anything starts, what Python callers get, and jobs that run on by themselves."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import elasticdl
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local import processes as local
from elasticdl.errors import BadInput, BadModel, BadSetting, Interrupted, JobFailed
from elasticdl.job import launcher, local_run, podrun, podsubmit, submit
from elasticdl.job.podjob import PodJob
from elasticdl.job.worker import WorkerProcess
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind

from .conftest import ELASTICDL, ROOT, orphans
from .test_launcher import SERVE, SLEEP

MODEL = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""
LEAST = {"model_def": "model.custom_model", "training_data": "data.csv"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(local, "_LEAVE_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """Let scripts stand for the processes of the next job."""
    sources = {Role.MASTER: SERVE + textwrap.dedent(master), Role.WORKER: SLEEP}
    argv = {role: [sys.executable, "-c", source] for role, source in sources.items()}
    monkeypatch.setattr(launcher, "supervise", functools.partial(launcher.supervise, argv=argv))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model_def": "model.nothing"}, BadModel),
        ({"training_data": "nothing"}, BadInput),
        ({"output": "/proc/m.keras"}, BadSetting),
        ({"numworkers": 3}, BadSetting),
        ({"num_workers": 99_999}, BadSetting),
    ],
)
def test_what_is_refused_leaves_nothing(
    here: Path, settings: dict[str, object], error: type[Exception]
) -> None:
    before = sorted(here.rglob("*"))
    with pytest.raises(error):
        elasticdl.train(**(LEAST | settings))
    assert sorted(here.rglob("*")) == before


def test_train_returns_the_summary(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(
        monkeypatch,
        "spec = place.spec(); end(0, status='finished', steps=3, seen=[spec.model_zoo, spec.output])",
    )
    summary = elasticdl.train(**LEAST, output=here / "m.keras")
    assert summary["status"] == "finished"
    assert summary["job"] == "model-1"
    assert summary["seen"] == [str(here), str(here / "m.keras")]
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed["steps"] == "3"


@pytest.mark.parametrize(("code", "error"), [(1, JobFailed), (2, BadInput), (130, Interrupted)])
def test_train_raises_what_happened(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    status = launcher.STATUS_OF_CODE[code]
    pretend(monkeypatch, f"end({code}, status={status!r}, reason='the reason')")
    with pytest.raises(error, match="the reason"):
        elasticdl.train(**LEAST)


def test_a_users_traceback_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(
        monkeypatch,
        "await_watcher(); event('failed', 'ValueError: wrong'); end(1, status='failed', reason='ValueError: wrong', "
        "traceback='Traceback (most recent call last):\\n  somewhere\\nValueError: wrong\\n')",
    )
    with pytest.raises(JobFailed):
        elasticdl.train(**LEAST)
    out, err = capsys.readouterr()
    assert (out + err).count("Traceback") == 1


IN_PODS = LEAST | {"training_data": "/data", "image_name": "image", "job_name": "job"}


@pytest.mark.parametrize(("code", "error"), [(0, None), (1, JobFailed), (2, BadInput), (130, Interrupted)])
def test_train_runs_a_job_with_an_image_in_pods(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception] | None
) -> None:
    summary = {"job": "job", "exit_code": code, "reason": "so it is"}
    monkeypatch.setattr(podrun, "run", lambda spec, *stream: summary)
    if error is None:
        assert elasticdl.train(**IN_PODS) == summary
    else:
        with pytest.raises(error, match="so it is"):
            elasticdl.train(**IN_PODS)


def test_train_submits_a_job_to_its_cluster_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    api = cast(Api, SimpleNamespace(namespace="default"))
    monkeypatch.setattr(podsubmit, "submit", lambda spec: PodJob(api, spec.job_name))
    monkeypatch.setattr(podrun, "check_model_file", lambda spec: SimpleNamespace(path=Path("no/model.py")))
    job = elasticdl.train(**IN_PODS, wait=False)
    assert (job.name, job.namespace) == ("job", "default")
    with pytest.raises(BadSetting, match=r"--detach \(in Python wait=False\) leaves none"):
        elasticdl.train(**IN_PODS, wait=False, summary="summary.json")


def test_python_does_not_wait_by_wait_alone() -> None:
    with pytest.raises(
        BadSetting, match=r"detach= is for the command line; elasticdl\.train\(…, wait=False\)"
    ):
        elasticdl.train(**LEAST, detach=True)
    assert places.places() == []


def test_a_summary_that_can_not_be_written_is_refused_before_a_job_in_pods() -> None:
    with pytest.raises(BadSetting, match=r"--summary: '/proc/s\.json' can't be written"):
        elasticdl.train(**IN_PODS, summary="/proc/s.json")


def test_a_setting_that_changes_nothing_is_a_warning_at_the_callers_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "end(0, status='finished')")
    with pytest.warns(UserWarning, match="need_task_manager= is accepted and changes nothing") as said:
        elasticdl.train(**LEAST, need_task_manager=True)
    assert [warning.filename for warning in said] == [__file__]


def test_train_takes_a_spec_or_settings() -> None:
    spec = build(from_arguments(LEAST))
    with pytest.raises(BadInput, match="not both"):
        elasticdl.train(spec, seed=3)


def test_the_place_says_that_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    place, lock = submit.prepare(build(from_arguments(LEAST | {"detach": True})), 12.0)
    assert place.running()
    assert place.submitted_at == 12.0
    assert place.spec().detach is False
    os.close(lock)
    place.remove()


@pytest.mark.parametrize(
    ("theirs", "mine", "flag"),
    [
        ({"audit": "one"}, {"audit": "one"}, "--audit"),
        ({"checkpoint_dir": "one"}, {"checkpoint_dir": "two/../one"}, "--checkpoint_dir"),
        ({"output": "one.keras"}, {"output": "link/one.keras"}, "--output"),
        ({"output": "one", "output_format": "saved_model"}, {"summary": "one/two"}, "--summary"),
    ],
)
def test_where_a_job_that_runs_writes_no_other_job_does(
    theirs: dict[str, str], mine: dict[str, str], flag: str, here: Path
) -> None:
    (here / "link").symlink_to(here)
    (here / "two").mkdir()
    place, lock = submit.prepare(build(from_arguments(LEAST | theirs)))
    with pytest.raises(BadSetting, match=f"{flag}: the job {place.name}, which runs, writes to '{here}/one"):
        submit.prepare(build(from_arguments(LEAST | mine)))
    assert places.places() == [place]
    os.close(lock)  # it has ended
    other, lock = submit.prepare(build(from_arguments(LEAST | mine)))
    os.close(lock)
    assert places.places() == [place, other]


def test_a_job_that_has_summed_up_is_waited_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, lock = submit.prepare(build(from_arguments(LEAST | {"audit": "one"})))
    place.summary_path.write_text("{}")
    monkeypatch.setattr(submit, "_LOOK_SECONDS", 0.0)
    ending = iter([os.close])
    monkeypatch.setattr(time, "sleep", lambda _: next(ending)(lock))
    _, lock = submit.prepare(build(from_arguments(LEAST | {"audit": "one"})))
    os.close(lock)


def test_tables_of_one_database_may_be_written_by_jobs_at_once(here: Path) -> None:
    one, other = (
        build(
            from_arguments(
                {
                    "model_def": "model.custom_model",
                    "prediction_data": "data.csv",
                    "trained_model": "model.py",
                    "output": f"sqlite:///here.db?table={table}",
                }
            ),
            JobKind.PREDICT,
        )
        for table in ("one", "other")
    )
    _, lock = submit.prepare(one)
    _, other_lock = submit.prepare(other)
    with pytest.raises(BadSetting, match=r"--output: the job .* writes to"):
        submit.prepare(one)
    os.close(lock)
    os.close(other_lock)


def test_a_working_directory_that_was_removed_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    settings = {"model_zoo": str(here), "training_data": str(here / "data.csv")}
    with pytest.raises(BadSetting, match="the working directory has been removed"):
        elasticdl.train(**LEAST | settings)


def test_local_cannot_be_detached() -> None:
    with pytest.raises(BadInput, match="use AllreduceStrategy with --num_workers=1"):
        elasticdl.train(**LEAST, distribution_strategy="Local", wait=False)
    assert places.places() == []


def test_ctrl_c_before_a_detached_job_listens_ends_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(place: object) -> bool:
        raise KeyboardInterrupt

    class Launcher(subprocess.Popen[bytes]):
        def __init__(self, argv: list[str], **settings: Any) -> None:
            super().__init__([sys.executable, "-c", SLEEP], **settings)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Launcher)
    monkeypatch.setattr(places.JobPlace, "listening", interrupted)
    with pytest.raises(KeyboardInterrupt):
        elasticdl.train(**LEAST, wait=False)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert places.places() == []


def test_a_detached_job_is_looked_at_and_stopped_by_name(iris: Path, here: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ELASTICDL, *arguments], capture_output=True, text=True, timeout=240)

    started = command(
        *("train", "--detach", "--job_name=quiet", f"--model_zoo={ROOT / 'model_zoo'}"),
        *(
            "--model_def=iris.dnn_iris.custom_model",
            f"--training_data={next(iris.glob('train*'))}",
            "--num_epochs=0",
        ),
    )
    assert started.returncode == 0, started.stderr
    assert started.stdout.splitlines() == [
        "quiet-1 has been started. Look at it, read along, end it:",
        "  elasticdl status quiet-1",
        "  elasticdl logs -f quiet-1",
        "  elasticdl stop quiet-1",
    ]
    assert "quiet-1  running" in command("list").stdout
    following = subprocess.Popen([ELASTICDL, "logs", "-f", "quiet-1"], stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    for line in following.stdout:
        if "worker-0-1 has joined" in line or "worker-1-1 has joined" in line:
            break
    else:
        pytest.fail(f"nobody joined: {command('logs', 'quiet').stdout}")
    assert "quiet-1: training" in command("status", "quiet").stdout
    assert command("stop", "quiet").returncode == 0
    following.communicate(timeout=120)  # ends with the job
    assert "status" in command("status", "quiet").stdout
    summary = places.find("quiet").summary()
    assert summary is not None
    assert summary["status"] == "finished"
    assert orphans(str(here)) == []


def test_a_local_member_that_comes_late_hears_that_the_job_has_failed(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    class Late(WorkerProcess):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            [master] = [thread for thread in threading.enumerate() if thread.name == "master"]
            master.join()
            super().__init__(*arguments, **named)

    monkeypatch.setattr(local_run, "WorkerProcess", Late)
    (here / "data.csv").write_text('a,b\n1,"2\n')
    with pytest.raises(BadInput, match="is a quote never closed"):
        elasticdl.train(**LEAST, framework="reference", distribution_strategy="Local")
