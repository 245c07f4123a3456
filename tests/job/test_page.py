"""The page of real jobs: what is seen of kills, evaluations and other masters, and who may look."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from elasticdl.cluster.local.place import JobPlace, find
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.errors import BadSetting
from elasticdl.job import page as pages
from elasticdl.master.reporting.statusstore import FileStatusStore
from elasticdl.spec.edge import build, from_arguments
from tests.page.conftest import browser
from tests.page.test_eventfiles import scalars

from .conftest import ELASTICDL, Job, Start
from .test_evaluation import master_of

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

__all__ = ["browser"]  # a fixture

ZOO = Path(__file__).parent / "zoo"
SECONDS = 120.0
SEEN_SECONDS = 2.0
"""Within which the page shows what is in the journal."""
T = TypeVar("T")


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go"), "STUCK": str(tmp_path / "stuck"), "TOLD": str(tmp_path)},
        model_zoo=ZOO,
        model_def="paced.custom_model",
        training_data=iris / "train",
        num_workers=2,
        num_epochs=40,
        minibatch_size=8,
        num_minibatches_per_task=1,
        global_batch_size=16,
        witness_seconds=2,
    )


def until(job: Job, ask: Callable[[], T | None]) -> T:
    """Ask until there is an answer, while the job runs; there is no event to wait for in another process."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if (answer := ask()) is not None:
                return answer
        except (OSError, BadSetting):
            pass
        if job.process.poll() is not None:
            pytest.fail(f"the job has ended\n{job.wait().err}")
        time.sleep(0.05)
    raise AssertionError("nothing came")


def place_of(job: Job) -> JobPlace:
    return until(job, lambda: find("test"))


def page_of(job: Job) -> dict[str, str]:
    place = place_of(job)
    return until(job, lambda: json.loads(place.page_path.read_text()))


def ask(page: dict[str, str], path: str, token: str = "token") -> Any:
    request = urllib.request.Request(
        page["address"] + path, headers={"Authorization": f"Bearer {page[token]}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = answer.read().decode()
    return json.loads(body) if path.startswith("/api/v1/") and "events" not in path else body


def at_step(job: Job, page: dict[str, str], step: int) -> dict[str, Any]:
    """Return how the job stands at or after a step at which two workers train."""

    def look() -> dict[str, Any] | None:
        body: dict[str, Any] | None = ask(page, "/api/v1/status")["job"]
        if body is None or body["step"] < step:
            return None
        return body if sum(one["state"] == "training" for one in body["workers"]) == 2 else None

    return until(job, look)


def events(place: JobPlace) -> Iterator[JobEvent]:
    yield from (told.event for told in FileStatusStore(place).recall())


def test_a_killed_worker_is_seen_in_a_browser_within_two_seconds(
    begin: Start, tmp_path: Path, browser: Chrome
) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    job = begin()
    page = page_of(job)
    browser.get(f"{page['address']}/#token={page['token']}")
    worker = at_step(job, page, 5)["workers"][-1]
    wait = WebDriverWait(browser, SECONDS, 0.05)
    wait.until(
        lambda chrome: chrome.execute_script("return document.querySelectorAll('rect.training').length >= 2")
    )
    # The page itself says when it shows the loss: the way to the test takes time.
    browser.execute_script(WATCH, worker["name"])
    os.kill(worker["pid"], signal.SIGKILL)
    shown = wait.until(lambda chrome: chrome.execute_script("return window.shownAt"))
    (ended,) = (one for one in events(find("test")) if one.kind == EventKind.ENDED)
    assert ended.worker == worker["name"]
    assert 0 <= shown / 1000 - ended.time <= SEEN_SECONDS
    (tmp_path / "go").touch()
    job.wait().succeeded()


WATCH = """
const look = () => {
  if (!window.shownAt && document.querySelector(`rect.lost[data-process="${name}"]`)) window.shownAt = Date.now();
};
const name = arguments[0];
new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
"""


def test_metrics_of_evaluations_are_on_the_page_and_workers_that_evaluate_say_so(
    begin: Start, iris: Path, tmp_path: Path
) -> None:
    job = begin(
        model_def="judged.custom_model",
        validation_data=iris / "train",
        evaluation_steps=5,
        num_epochs=2,
        tensorboard_log_dir=tmp_path / "board",
    )
    page = page_of(job)

    def evaluating() -> list[str] | None:
        body = ask(page, "/api/v1/status")["job"]
        if body is None or body["state"] != "evaluating":
            return None
        assert re.fullmatch(r"evaluation of step \d+: \d+ of \d+ tasks are done", body["reason"])
        return [one["state"] for one in body["workers"]]

    assert until(job, evaluating) == ["evaluating", "evaluating"]
    series = until(job, lambda: one if "val_loss" in (one := ask(page, "/api/v1/series")["series"]) else None)
    figures = ask(page, "/metrics", "metrics_token")
    (tmp_path / "go").touch()
    job.wait().succeeded()
    told = [one for one in events(find("test")) if one.kind == EventKind.EVALUATED]
    time_, step, value = series["val_loss"][0]
    assert (step, round(time_, 3)) == (told[0].step, round(told[0].time, 3))
    assert value == pytest.approx(dict(told[0].values)["val_loss"], rel=1e-5)
    assert 'elasticdl_validation{metric="val_loss"}' in figures
    written = [(at, value) for tag, at, value, _ in scalars(tmp_path / "board") if tag == "val_loss"]
    assert written == [(one.step, pytest.approx(dict(one.values)["val_loss"], rel=1e-6)) for one in told]
    losses = [at for tag, at, _, _ in scalars(tmp_path / "board") if tag == "loss"]
    assert losses == sorted(set(losses))
    assert losses[-1] == told[-1].step


def test_another_master_continues_the_page_at_its_address(begin: Start, tmp_path: Path) -> None:
    board = tmp_path / "board"
    job = begin(tensorboard_log_dir=board)
    page = page_of(job)
    at_step(job, page, 5)
    place = place_of(job)
    until(job, lambda: (place.path / "curves.json").exists() or None)
    before = json.loads((place.path / "curves.json").read_text())["curves"]["loss"]
    master = master_of(job)
    os.kill(master, signal.SIGKILL)

    def back() -> list[Any] | None:
        marks = ask(page, "/api/v1/timeline")["marks"]
        return ask(page, "/api/v1/series")["series"]["loss"] if marks else None

    after = until(job, back)
    assert after[: len(before) - 1] == before[:-1]
    assert json.loads(place.page_path.read_text()) == page
    (tmp_path / "go").touch()
    job.wait().succeeded()
    assert len(list(board.iterdir())) == 2
    assert not place.page_path.exists()


def serves(master: int) -> bool:
    """Tell whether a process has loaded what serves a page."""
    return "/aiohttp/" in Path(f"/proc/{master}/maps").read_text()


def test_the_tokens_are_for_their_owner_and_no_way_to_join(begin: Start, tmp_path: Path) -> None:
    job = begin()
    page, place = page_of(job), place_of(job)
    assert place.page_path.stat().st_mode & 0o777 == 0o600
    assert place.token().hex() not in place.page_path.read_text()
    assert not serves(master_of(job)), "until somebody calls"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(page, "/api/v1/status", "metrics_token")
    assert serves(master_of(job))
    listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True, check=True).stdout
    port = int(page["address"].rpartition(":")[2])
    assert f"0100007F:{port:04X}" in listening, "on this machine only"
    (tmp_path / "go").touch()
    job.wait().succeeded()


def test_the_address_is_printed_and_a_job_that_has_ended_is_served_by_the_command(
    begin: Start, tmp_path: Path
) -> None:
    job = begin()
    page = page_of(job)
    environment = {
        name: text for name, text in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    command = [ELASTICDL, "status", "test", "--open"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == f"{page['address']}/#token={page['token']}\n"
    (tmp_path / "go").touch()
    job.wait().succeeded()
    command_process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert command_process.stdout is not None
        address, _, token = command_process.stdout.readline().strip().partition("/#token=")
        ended = {"address": address, "token": token}
        body = ask(ended, "/api/v1/status")
        assert (body["job"]["state"], body["job"]["step"], body["job"]["done"]) == ("finished", 320, 1.0)
        assert ask(ended, "/api/v1/series")["series"]["loss"][-1][1] == 320
        assert ask(ended, "/api/v1/timeline")["ended"] is not None
        assert "worker-0-1" in ask(ended, "/api/v1/logs")["processes"]
    finally:
        command_process.send_signal(signal.SIGINT)
        assert command_process.wait(30) == 0


@pytest.mark.parametrize(
    ("summary", "done"),
    [
        ({"status": "finished", "steps": 9, "epochs": 3}, 1.0),
        ({"status": "finished", "steps": 9, "epochs": 2}, None),  # it was stopped
        ({"status": "finished", "records_predicted": 9}, 1.0),
        ({"status": "failed", "steps": 9, "epochs": 3}, None),
    ],
)
def test_a_job_that_has_ended_is_done_if_all_of_its_data_is(
    summary: dict[str, Any], done: float | None
) -> None:
    spec = build(from_arguments({"model_def": "a.b", "training_data": "c", "num_epochs": 3}))
    assert pages.status_at_the_end("job", spec, summary).done == done


def test_a_port_in_use_is_refused_before_anything_is_made(begin: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = begin(status_port=port).wait()
        assert result.code == 2
        assert f"--status_port: the port {port}" in result.err
        assert not (tmp_path / "state").exists()
    (tmp_path / "go").touch()
    job = begin(status_port=port, num_epochs=1)
    result = job.wait().succeeded()


def test_a_job_in_the_caller_s_process_leaves_no_thread_behind(
    iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "script.py"
    script.write_text(LOCAL)
    monkeypatch.setenv("TOLD", str(tmp_path))
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    arguments = [sys.executable, str(script), str(ZOO), str(iris / "train")]
    run = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, run.stderr
    assert "page" in run.stdout.split("names while open: ")[1].splitlines()[0], "it had one"
    assert run.stdout.split("left ")[1].strip() == "[]", "nor does any other thread outlive the job"


LOCAL = """
import os, socket, sys, threading
import elasticdl
from elasticdl.job import page

calls = []
waits = page.MasterPage._is_called
def call(self, listening):
    calls.append(socket.create_connection(listening.getsockname()))
    return waits(self, listening)
page.MasterPage._is_called = call
opened = []
serve = page.MasterPage._serve
def remember(self):
    server = serve(self)
    opened.append([one.name for one in threading.enumerate()])
    open(os.environ["GO"], "w").close()
    return server
page.MasterPage._serve = remember
elasticdl.train(
    model_zoo=sys.argv[1], model_def="paced.custom_model", training_data=sys.argv[2], distribution_strategy="Local", num_workers=1,
    num_epochs=30, validation_data=sys.argv[2], checkpoint_dir="checkpoints", tensorboard_log_dir="board",
)
print("names while open:", opened)
others = [one for one in threading.enumerate() if one is not threading.main_thread()]
for one in others:
    one.join(10)
print("left", [one.name for one in others if one.is_alive()])
"""


def test_logs_of_processes_end_where_they_end(tmp_path: Path) -> None:
    place = JobPlace(tmp_path, tmp_path, 0.0, tmp_path)
    place.logs.mkdir()
    long = "\n".join(f"{number} {'x' * 100}" for number in range(50_000))
    place.log_path("worker-0-1").write_text(long + "\nlast line")
    logs = pages.LocalLogs(place)
    assert logs.processes() == ["worker-0-1"]
    found = logs.tail("worker-0-1", 1000)
    assert len(found) == 1000
    assert found[-1] == "last line"
    assert found[0].startswith("49001 ")
    place.log_path("ps-0-1").write_text("")
    assert logs.tail("ps-0-1", 10) == []
