"""Supervising a job from its launcher's side, with scripts in place of master and workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local import processes as local
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.supervision import JobEnded
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.job.launcher import Outcome, sum_up, supervise
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

SLEEP = "import signal; signal.pause()"

SERVE = """
import json, os, queue, signal, sys, time
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.transport.stream import ControlServer, StopWanted
from elasticdl.cluster.local.place import own_place
watch_parent()
place = own_place()
said = queue.SimpleQueue()
server = ControlServer(place.control_address, place.token(), said.put)
def event(kind, text):
    server.publish(JobEvent(time.time(), kind, "", 1, 1, text))
def status(step):
    server.publish(JobStatus("job", "training", "", 1, step, 0, 1, 0.5, 0.25, 10, 5.0, 1.0, 2, ()))
def await_watcher():
    while not server._watchers:
        time.sleep(0.01)
def end(code, **summary):
    place.summary_path.write_text(json.dumps(summary))
    server.close()
    sys.exit(code)
def await_stop():
    while not isinstance(wanted := said.get(), StopWanted):
        pass
    wanted.answer(True, "the job ends at the next step")
    return wanted.reason
"""


class Recorder:
    """A display that keeps what it is shown."""

    def __init__(self, seen: Callable[[str], None] = lambda text: None) -> None:
        self.lines: list[str] = []
        self._seen = seen

    def notice(self, text: str) -> None:
        self._keep(text)

    def event(self, event: JobEvent) -> None:
        self._keep(f"{event.kind}: {event.text}")

    def status(self, status: JobStatus) -> None:
        self._keep(f"step {status.step}")

    def close(self) -> None:
        self.lines.append("closed")

    def _keep(self, text: str) -> None:
        self.lines.append(text)
        self._seen(text)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LEAVE_SECONDS", 0.0)  # the stand-ins for workers never leave by themselves
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return build(
        from_arguments(
            {"model_def": "a.job.b", "training_data": "x", "summary": str(tmp_path / "new" / "summary.json")}
        )
    )


@pytest.fixture
def place(spec: JobSpec) -> Iterator[JobPlace]:
    made = places.create(spec)
    yield made
    made.close()


def argv(master: str, worker: str = SLEEP) -> dict[Role, list[str]]:
    sources = {Role.MASTER: SERVE + textwrap.dedent(master), Role.WORKER: worker}
    return {role: [sys.executable, "-c", source] for role, source in sources.items()}


def left(place: JobPlace) -> list[psutil.Process]:
    """Return processes of a job that still run."""
    mine = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(places.ENVIRONMENT) == str(place.path) and process.pid != os.getpid():
                mine.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return mine


def test_a_job_from_start_to_end(place: JobPlace, spec: JobSpec) -> None:
    recorder = Recorder()
    master = """
    await_watcher()
    event("joined", "worker-0-1 joined")
    status(0)
    status(1)
    event("finished", "done")
    end(0, status="finished", reason="the data has ended", steps=1)
    """
    outcome = supervise(place, spec, lambda: recorder, argv(master))
    assert outcome.code == 0
    assert recorder.lines == ["joined: worker-0-1 joined", "step 0", "step 1", "finished: done", "closed"]
    assert outcome.summary["status"] == "finished"
    assert outcome.summary["reason"] == "the data has ended"
    assert 0 < outcome.summary["seconds_to_first_step"] <= outcome.summary["seconds"]
    assert (
        json.loads(Path(spec.summary).read_text())
        == json.loads(place.summary_path.read_text())
        == outcome.summary
    )
    assert left(place) == []
    assert not place.sockets.exists()
    assert not (place.path / "token").exists()


def test_a_job_that_is_over_before_anybody_listens_is_shown_from_its_events(
    place: JobPlace, spec: JobSpec
) -> None:
    recorder = Recorder()
    master = """
    from dataclasses import replace
    from elasticdl.master.reporting.history import HistoryEvent
    from elasticdl.master.reporting.statusstore import FileStatusStore
    store = FileStatusStore(place)
    heard = JobEvent(time.time(), "note", "", 1, 1, "heard")
    await_watcher()
    server.publish(heard)
    for told in (heard, replace(heard, time=heard.time + 1, text="told to nobody"),
                 replace(heard, time=heard.time + 2, kind="finished", text="over")):
        store.tell(HistoryEvent(told))
    end(0, status="finished", steps=1)
    """
    supervise(place, spec, lambda: recorder, argv(master))
    assert recorder.lines == ["note: heard", "note: told to nobody", "finished: over", "closed"]


def test_the_workers_are_started_beside_the_master(place: JobPlace, spec: JobSpec) -> None:
    master = """
    from elasticdl.cluster.local.localcluster import LocalCluster
    from elasticdl.cluster.cluster import process_name
    cluster = LocalCluster(place.launcher_address, place.token())
    for index in range(3):
        cluster.launch(process_name(f"worker-{index}-1"))
    seen = []
    while len(seen) < 3:
        seen += cluster.events(30)
    end(0, seen=sorted(str(event.name) for event in seen))
    """
    outcome = supervise(place, spec, Recorder, argv(master))
    assert outcome.summary["seen"] == ["worker-0-1", "worker-1-1", "worker-2-1"]


def test_a_restarted_master_is_watched_again_without_repetition(place: JobPlace, spec: JobSpec) -> None:
    recorder = Recorder()
    master = """
    if os.environ["ELASTICDL_PROCESS"] == "master-0-1":
        event("note", "first")
        status(1)
        import select
        select.select([], [], [], 60)  # until the test kills it
    await_watcher()
    event("note", "second")
    end(0, status="finished")
    """
    killed = threading.Event()

    def kill_master(text: str) -> None:
        if text == "step 1" and not killed.is_set():
            killed.set()
            for process in left(place):
                if process.environ()["ELASTICDL_PROCESS"] == "master-0-1":
                    process.kill()

    recorder = Recorder(kill_master)
    outcome = supervise(place, spec, lambda: recorder, argv(master))
    assert outcome.code == 0
    assert recorder.lines.count("note: first") == 1
    assert recorder.lines.count("note: second") == 1
    assert any("the master ended by signal 9" in line for line in recorder.lines)


def test_without_the_masters_summary_there_is_one_all_the_same(place: JobPlace, spec: JobSpec) -> None:
    outcome = supervise(place, spec, Recorder, argv("server.close(); sys.exit(70)"))
    assert outcome.code == 1
    assert outcome.summary["status"] == "failed"
    assert "5 times in a row with code 70" in outcome.summary["reason"]
    assert json.loads(Path(spec.summary).read_text())["status"] == "failed"


def test_a_full_disk_does_not_hide_how_the_job_ended(
    place: JobPlace, spec: JobSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    summary = sum_up(place, replace(spec, summary=""), JobEnded(0, "done"), None)
    assert summary["status"] == "finished"
    assert (
        f"the summary can't be written to {place.summary_path}: No space left on device"
        in capsys.readouterr().err
    )
    assert list(place.path.glob(".*")) == []


def test_in_another_thread_it_leaves_signals_alone(place: JobPlace, spec: JobSpec) -> None:
    before = signal.getsignal(signal.SIGINT)
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(supervise(place, spec, Recorder, argv("end(0, status='finished')")))
    )
    thread.start()
    thread.join(60)
    assert [outcome.code for outcome in outcomes] == [0]
    assert signal.getsignal(signal.SIGINT) is before


# ------------------------------------------------------------------ signals, in a process of its own

SUBMIT = """
import faulthandler, sys
faulthandler.enable()
from pathlib import Path
from elasticdl.cluster.cluster import Role
from elasticdl.job.launcher import supervise
from elasticdl.job.display import PlainDisplay
from elasticdl.cluster.local.place import open_place
place = open_place(Path(sys.argv[1]))
lock = place.hold()
argv = {role: [sys.executable, "-c", source] for role, source in zip((Role.MASTER, Role.WORKER), sys.argv[2:])}
outcome = supervise(place, place.spec(), lambda: PlainDisplay(sys.stdout, place.submitted_at, 1), argv)
print("reason", outcome.summary["reason"], outcome.summary["status"], flush=True)
sys.exit(outcome.code)
"""


@pytest.fixture
def submit(place: JobPlace) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def begin(master: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SUBMIT, str(place.path), SERVE + textwrap.dedent(master), SLEEP]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def until_line(process: subprocess.Popen[str], part: str) -> None:
    """Read up to a line; a process that hangs shows where on standard error."""
    assert process.stdout is not None
    timer = threading.Timer(60, process.send_signal, (signal.SIGABRT,))
    timer.start()
    try:
        for line in process.stdout:
            if part in line:
                return
    finally:
        timer.cancel()
    pytest.fail(f"{part!r} never came")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_asks_the_master(
    submit: Callable[[str], subprocess.Popen[str]], place: JobPlace, number: signal.Signals
) -> None:
    process = submit("""
        event("note", "up")
        end(130, status="interrupted", reason=await_stop())
    """)
    until_line(process, "up")
    process.send_signal(number)
    until_line(process, "reason interrupt interrupted")
    assert process.wait(60) == 130
    assert left(place) == []


def test_two_interrupts_end_everything_at_once(
    submit: Callable[[str], subprocess.Popen[str]], place: JobPlace
) -> None:
    process = submit("""
        event("note", "up")
        await_stop()
        event("note", "asked")
        await_stop()
    """)
    until_line(process, "up")
    process.send_signal(signal.SIGINT)
    until_line(process, "asked")
    process.send_signal(signal.SIGINT)
    until_line(process, "reason killed interrupted")
    assert process.wait(60) == 130
    assert left(place) == []
    assert not place.sockets.exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_left_when_the_launcher_is_killed(
    submit: Callable[[str], subprocess.Popen[str]], place: JobPlace, stopped: bool
) -> None:
    process = submit("""
        event("note", "up")
        await_stop()
    """)
    until_line(process, "up")
    masters = [found for found in left(place) if found.environ()["ELASTICDL_PROCESS"].startswith("master")]
    assert len(masters) == 1
    assert place.running()
    if stopped:
        masters[0].suspend()
        while masters[0].status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)  # another process's stop has no event
    process.kill()
    process.wait(60)
    _, alive = psutil.wait_procs(masters, timeout=30)
    assert alive == []
    assert not place.running()
    for orphan in left(place):  # the sleeping stand-ins for workers don't watch their parent-death watch
        orphan.kill()
