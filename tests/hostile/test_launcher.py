"""Attacks on a local job's launcher, and accidents in it: the job ends with a reason or continues, and nothing of it stays."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticdl.cli import run as run_command
from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessName, ProcessStarted, Role
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local import processes as local
from elasticdl.cluster.local import wire
from elasticdl.cluster.local.localcluster import LocalCluster
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.processes import Launcher
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.job.launcher import Outcome, supervise
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec

WAIT = 30.0
SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
ARGV = {Role.MASTER: SLEEP, Role.WORKER: SLEEP}
NESTED = b"[" * 4000
"""Fits into a line, and is deeper than Python's JSON goes."""


class Quiet:
    """A display that shows nothing."""

    def notice(self, text: str) -> None: ...
    def event(self, event: JobEvent) -> None: ...
    def status(self, status: JobStatus) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def spec() -> JobSpec:
    return build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "attacked"}))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: JobSpec) -> Iterator[JobPlace]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(local, "_LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(local, "_FAILED_LEAVE_SECONDS", 0.0)
    made = places.create(spec)
    yield made
    made.close()


@pytest.fixture
def launcher(place: JobPlace) -> Iterator[Launcher]:
    made = Launcher(place, ARGV)
    made.start()
    yield made
    made.kill()
    assert made.wait(WAIT) is not None


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def until(cluster: LocalCluster, kind: type) -> Any:
    while True:
        for event in cluster.events(WAIT):
            if isinstance(event, kind):
                return event


def connect(place: JobPlace) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(WAIT)
    raw.connect(place.launcher_address.removeprefix("unix:"))
    return raw


def is_closed(raw: socket.socket) -> bool:
    """Read to the end: True once the launcher has closed the connection."""
    try:
        while raw.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


# ------------------------------------------------------------------ requests


NOISE = (
    NESTED,
    b'{"hello":' + NESTED,
    b'{"launch":"worker-0-1"}',
    b'{"signal":"master-0-1","number":9}',
    b'{"proof":"00"}',
    b'{"keep":"spare"}',
    b'{"hello":3,"nonce":["a"]}',
    b'{"hello":3,"nonce":"\\ud800"}',
    b'{"hello":3,"nonce":"a"}\n{"proof":"\\udfff"}',
    b'{"hello":3,"nonce":"a"}\n{"hello":3,"nonce":"a"}',
    b"9" * 4000,
    b"\xff" * 5000,
)


@pytest.mark.parametrize("noise", NOISE, ids=range(len(NOISE)))
def test_a_malformed_request_closes_only_its_connection(
    place: JobPlace, launcher: Launcher, noise: bytes
) -> None:
    standing = LocalCluster(place.launcher_address, place.token())
    with connect(place) as raw:
        raw.sendall(noise + b"\n")
        raw.shutdown(socket.SHUT_WR)
        assert is_closed(raw)
    standing.launch(ProcessName(Role.WORKER, 0, 1))
    assert until(standing, ProcessStarted).name == ProcessName(Role.WORKER, 0, 1)
    assert [name.role for name in launcher.processes()] == [Role.MASTER, Role.WORKER]
    standing.close()


def test_the_token_is_never_sent_and_a_recorded_conversation_is_worth_nothing(
    place: JobPlace, launcher: Launcher, tmp_path: Path
) -> None:
    recorded: list[bytes] = []
    folder = Path(os.environ["XDG_STATE_HOME"]) / "relay"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder))
        listener.listen()

        def relay() -> None:
            """Carry a master's connection to the launcher, and write down what it says."""
            near, _ = listener.accept()
            with near, connect(place) as far:
                near.settimeout(WAIT)
                for _ in range(2):
                    recorded.append(near.recv(4096))
                    far.sendall(recorded[-1])
                    near.sendall(far.recv(4096) if len(recorded) == 1 else b"")
                near.recv(1)

        carrying = threading.Thread(target=relay)
        carrying.start()
        LocalCluster(f"unix:{folder}", place.token()).close()
        carrying.join(WAIT)
    said = b"".join(recorded)
    assert [line[:8] for line in said.splitlines()] == [b'{"hello"', b'{"proof"']
    assert place.token() not in said
    assert place.token().hex().encode() not in said
    with connect(place) as raw:
        raw.sendall(said + b'{"launch":"worker-0-1"}\n')
        assert is_closed(raw)
    assert [name.role for name in launcher.processes()] == [Role.MASTER]


def test_a_false_launcher_is_not_believed(place: JobPlace) -> None:
    address = place.launcher_address
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address.removeprefix("unix:"))
        listener.listen()

        def pretend() -> None:
            near, _ = listener.accept()
            with near:
                near.recv(4096)
                near.sendall(wire.write_challenge(wire.Challenge("0" * 32, "0" * 64)))
                near.recv(4096)

        pretending = threading.Thread(target=pretend)
        pretending.start()
        with pytest.raises(ConnectionError, match="does not know the job's token"):
            LocalCluster(address, place.token())
        pretending.join(WAIT)


# ------------------------------------------------------------------ accidents


def test_accept_pauses_when_descriptors_are_short(place: JobPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    attempts = 0

    class Short(socket.socket):
        """A listener in a process whose table of descriptors is full for three attempts."""

        def accept(self) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts <= 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    monkeypatch.setattr(socket, "socket", Short)
    made = Launcher(place, ARGV, notices.append)
    made.start()
    monkeypatch.undo()
    monkeypatch.setattr(local, "_FAILED_LEAVE_SECONDS", 0.0)
    cluster = LocalCluster(place.launcher_address, place.token())
    assert attempts == 4  # not as often as a busy loop would ask
    assert notices == ["a connection to the launcher has to wait: Too many open files"] * 3
    cluster.close()
    made.kill()
    assert made.wait(WAIT) is not None


@pytest.mark.parametrize("moment", ["start", "accept", "turn"])
def test_whatever_happens_in_the_launcher_ends_the_job_with_a_reason(
    place: JobPlace, spec: JobSpec, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    match moment:
        case "start":
            begin = threading.Thread.start

            def start(thread: threading.Thread) -> None:
                fail() if thread.name == "launcher" else begin(thread)

            monkeypatch.setattr(threading.Thread, "start", start)
        case "accept":
            monkeypatch.setattr(Launcher, "_accept", fail)
        case "turn":
            monkeypatch.setattr(Launcher, "_exchange", fail)
    before = children()
    lock = place.hold()
    outcomes: list[Outcome] = []
    job = threading.Thread(target=lambda: outcomes.append(supervise(place, spec, Quiet, ARGV)), name="job")
    job.start()
    # It may not listen yet, and its own children may have made it fail before.
    while moment != "start" and job.is_alive():
        with contextlib.suppress(OSError), connect(place) as raw:
            raw.sendall(b"x")
            is_closed(raw)
            break
        time.sleep(0.01)
    job.join(WAIT)
    assert not job.is_alive(), "the command spins"
    os.close(lock)
    reason = "the job's launcher failed: RuntimeError: can't start new thread"
    assert [outcome.code for outcome in outcomes] == [1]
    assert (outcomes[0].summary["status"], outcomes[0].summary["reason"]) == ("failed", reason)
    written = json.loads(place.summary_path.read_text())
    assert (written["status"], written["reason"]) == ("failed", reason)
    assert children() == before
    assert not place.sockets.exists()


def test_list_and_status_agree_about_a_job_whose_launcher_failed(
    place: JobPlace, spec: JobSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    # A master has said that all went well, and then the launcher fails.
    place.summary_path.write_text(json.dumps({"status": "finished", "reason": "done", "exit_code": 0}))
    monkeypatch.setattr(Launcher, "_poll", fail)
    lock = place.hold()
    assert supervise(place, spec, Quiet, ARGV).code == 1
    os.close(lock)
    capsys.readouterr()
    assert run_command(["list"]) == 0
    assert capsys.readouterr().out.split()[:2] == [place.name, "failed"]
    assert run_command(["status", place.name]) == 0
    shown = capsys.readouterr().out
    assert "failed" in shown
    assert "the job's launcher failed: OSError" in shown


@pytest.mark.parametrize("summary", ["", "{", "[1]", "[" * 100_000])
def test_a_summary_that_can_not_be_read_is_none(
    place: JobPlace, summary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.summary_path.write_text(summary)
    assert run_command(["list"]) == 0
    assert capsys.readouterr().out.split()[:2] == [place.name, "killed"]
    assert run_command(["status", place.name]) == 1
    assert "its launcher was killed" in capsys.readouterr().out


def test_a_worker_without_a_thread_that_waits_for_it_is_reported_and_gone(
    place: JobPlace, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    cluster = LocalCluster(place.launcher_address, place.token())
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("wait worker"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    cluster.launch(ProcessName(Role.WORKER, 0, 1))
    ended = until(cluster, ProcessEnded)
    assert (ended.name, ended.blame, ended.text) == (
        ProcessName(Role.WORKER, 0, 1),
        Blame.START,
        "can't start new thread",
    )
    assert children() == before
    cluster.close()


def test_a_master_that_can_not_be_started_ends_the_job(place: JobPlace, spec: JobSpec) -> None:
    outcome = supervise(place, spec, Quiet, {**ARGV, Role.MASTER: ["/nonexistent/python"]})
    assert outcome.code == 1
    assert "the master can't be started, tried 5 times" in outcome.summary["reason"]
    assert "/nonexistent/python" in outcome.summary["reason"]


def test_the_end_is_waited_for_with_a_result(place: JobPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing that ends processes in order works any more."""

    def fail(*_: Any) -> Callable[..., None]:
        raise MemoryError

    for part in ("_poll", "_end_all"):
        monkeypatch.setattr(Launcher, part, fail)
    before = children()
    made = Launcher(place, ARGV)
    made.start()
    end = made.wait(WAIT)
    assert end is not None
    assert end.code == 1
    assert "MemoryError" in end.reason
    assert children() == before
