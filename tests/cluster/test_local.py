"""Launcher and `LocalCluster` with real processes: tiny scripts stand for master and workers."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessEvent, ProcessName, ProcessStarted, Role
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local import processes as local
from elasticdl.cluster.local.localcluster import LocalCluster
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.processes import Launcher
from elasticdl.spec.edge import build, from_arguments

WAIT = 30.0

SLEEP = "import signal; signal.pause()"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobPlace]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = places.create(build(from_arguments({"model_def": "a.b", "training_data": "x"})))
    yield made
    made.close()


@pytest.fixture
def launcher(place: JobPlace) -> Iterator[Callable[..., Launcher]]:
    """Start launchers whose master and workers run the given source text."""
    made: list[Launcher] = []

    def start(
        master: str = SLEEP, worker: str = SLEEP, notice: Callable[[str], None] = lambda text: None
    ) -> Launcher:
        argv = {
            Role.MASTER: [sys.executable, "-c", textwrap.dedent(master)],
            Role.WORKER: [sys.executable, "-c", textwrap.dedent(worker)],
        }
        made.append(Launcher(place, argv, notice))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.kill()
        assert one.wait(WAIT) is not None


def until(cluster: LocalCluster, wanted: Callable[[ProcessEvent], bool]) -> list[ProcessEvent]:
    """Read events up to the wanted one."""
    seen: list[ProcessEvent] = []
    while not any(wanted(event) for event in seen):
        new = cluster.events(WAIT)
        assert new, f"nothing came any more after {seen}"
        seen += new
    return seen


def worker(index: int, life: int = 1) -> ProcessName:
    return ProcessName(Role.WORKER, index, life)


def test_launch_signal_and_proof_of_death(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher()
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(3))
    (started,) = until(cluster, lambda event: isinstance(event, ProcessStarted))
    assert isinstance(started, ProcessStarted)
    assert started.name == worker(3)
    assert os.getsid(started.pid) == started.pid
    cluster.signal(worker(3), signal.SIGKILL)
    assert until(cluster, lambda event: isinstance(event, ProcessEnded)) == [ProcessEnded(worker(3), None, 9)]
    # Told as soon as it does nothing any more; its parent has its status a moment later.
    _eventually(lambda: not psutil.pid_exists(started.pid))
    cluster.signal(worker(3), signal.SIGKILL)  # of an ended process: no error
    cluster.signal(worker(9), signal.SIGKILL)  # of an unknown one: none either
    cluster.close()


def test_exit_codes_are_told(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher(worker="raise SystemExit(3)")
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(0))
    assert until(cluster, lambda event: isinstance(event, ProcessEnded))[-1] == ProcessEnded(
        worker(0), 3, None
    )
    cluster.close()


def test_a_name_is_launched_once(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher(worker="raise SystemExit(0)")
    cluster = LocalCluster(place.launcher_address, place.token())
    for name in (worker(0), worker(0), worker(1)):
        cluster.launch(name)
    seen: list[ProcessEvent] = []
    while sum(isinstance(event, ProcessEnded) for event in seen) < 2:
        seen += cluster.events(WAIT)
    cluster.launch(worker(0))  # also not after it has ended
    cluster.launch(worker(2))
    seen += until(cluster, lambda event: isinstance(event, ProcessEnded) and event.name == worker(2))
    assert [event.name.index for event in seen if isinstance(event, ProcessStarted)] == [0, 1, 2]
    cluster.close()


def test_a_new_connection_hears_the_whole_history(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher()
    first = LocalCluster(place.launcher_address, place.token())
    first.launch(worker(0))
    first.launch(worker(1))
    until(first, lambda event: event.name == worker(1))
    first.signal(worker(0), signal.SIGTERM)
    until(first, lambda event: isinstance(event, ProcessEnded))
    first.close()
    second = LocalCluster(place.launcher_address, place.token())
    seen = until(second, lambda event: isinstance(event, ProcessStarted) and event.name == worker(1))
    kinds = [(type(event), event.name) for event in seen]
    assert kinds == [(ProcessStarted, worker(0)), (ProcessEnded, worker(0)), (ProcessStarted, worker(1))]
    assert seen[1] == ProcessEnded(worker(0), None, 15)
    second.close()


LARGE = """
    import os, signal
    from elasticdl.cluster.local.exiting import announce
    announce()
    kept = bytearray(os.urandom(1 << 20)) * 512
    print("ready", flush=True)
    signal.pause()
"""


def test_a_kill_is_told_once_and_early_and_the_next_life_waits_for_the_memory(
    place: JobPlace, launcher: Callable[..., Launcher]
) -> None:
    parent = launcher(worker=LARGE)
    cluster = LocalCluster(place.launcher_address, place.token())
    early = 0
    cluster.launch(worker(0))
    for life in range(1, 11):
        (started,) = until(cluster, lambda event: isinstance(event, ProcessStarted))
        assert started.name == worker(0, life)
        assert list(parent.processes()).count(worker(0, life - 1)) == 0, "it has been reaped"
        log = place.log_path(f"worker-0-{life}")
        _eventually(log.read_text)
        cluster.signal(worker(0, life), signal.SIGKILL)
        seen = until(cluster, lambda event: isinstance(event, ProcessEnded))
        early += worker(0, life) in parent.processes()
        assert seen == [ProcessEnded(worker(0, life), None, signal.SIGKILL)]
        for _ in range(2):  # a master that has started again asks once more
            cluster.launch(worker(0, life + 1))
        if early == 3:
            break
    assert early
    cluster.close()


def test_output_goes_to_the_log_of_the_life(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher(worker="import os, sys; print(os.environ['ELASTICDL_PROCESS']); print('oops', file=sys.stderr)")
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(2, 7))
    until(cluster, lambda event: isinstance(event, ProcessEnded))
    assert (place.logs / "worker-2-7.log").read_text() == "worker-2-7\noops\n"
    cluster.close()


ADVISED = """
    import pathlib
    kept = bytearray(64 << 20)
    flags = [line for line in pathlib.Path("/proc/self/smaps").read_text().splitlines() if line.startswith("VmFlags")]
    print("asked" if any("hg" in line.split() for line in flags) else "not asked")
"""


@pytest.mark.parametrize(("own", "expected"), [(None, "asked\n"), ("glibc.malloc.hugetlb=0", "not asked\n")])
def test_workers_ask_for_huge_pages_unless_the_user_says_otherwise(
    own: str | None,
    expected: str,
    place: JobPlace,
    launcher: Callable[..., Launcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if own is None:
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    else:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    launcher(worker=ADVISED)
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(0))
    until(cluster, lambda event: isinstance(event, ProcessEnded))
    assert (place.logs / "worker-0-1.log").read_text() == expected
    cluster.close()


def test_what_a_worker_started_dies_with_it(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher(
        worker="""
        import subprocess, sys, signal
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        print(child.pid)
        signal.pause()
    """
    )
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(0))
    until(cluster, lambda event: isinstance(event, ProcessStarted))
    log = place.log_path("worker-0-1")
    grandchild = int(_eventually(lambda: log.read_text().strip()))
    cluster.signal(worker(0), signal.SIGKILL)
    until(cluster, lambda event: isinstance(event, ProcessEnded))
    _eventually(lambda: not _lives(grandchild))
    cluster.close()


def test_a_killed_master_is_started_again(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    notices: list[str] = []
    made = launcher(
        master="""
            import os, signal
            from elasticdl.cluster.local.localcluster import LocalCluster
            from elasticdl.cluster.cluster import process_name
            from elasticdl.cluster.local.place import own_place
            place = own_place()
            cluster = LocalCluster(place.launcher_address, place.token())
            if os.environ["ELASTICDL_PROCESS"] == "master-0-1":
                cluster.launch(process_name("worker-0-1"))
                cluster.events(30)
                os.kill(os.getpid(), signal.SIGKILL)
            print([type(event).__name__ for event in cluster.events(30)])
        """,
        notice=notices.append,
    )
    result = made.wait(WAIT)
    assert result is not None
    assert result.code == 0
    assert place.log_path("master-0-2").read_text() == "['ProcessStarted']\n"
    assert len(notices) == 1
    assert "signal 9" in notices[0]


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_a_final_code_ends_the_job(code: int, launcher: Callable[..., Launcher]) -> None:
    result = launcher(master=f"raise SystemExit({code})").wait(WAIT)
    assert result is not None
    assert result.code == code


def test_errors_of_the_master_in_a_row_end_the_job(
    place: JobPlace, launcher: Callable[..., Launcher]
) -> None:
    result = launcher(master="raise SystemExit(70)").wait(WAIT)
    assert result is not None
    assert result.code == 1
    assert "code 70" in result.reason
    assert len(list(place.logs.glob("master-*"))) == 5


def test_nothing_stays_when_the_master_ends(
    place: JobPlace, launcher: Callable[..., Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LEAVE_SECONDS", 0.1)
    monkeypatch.setattr(local, "_TERMINATE_SECONDS", 0.1)
    made = launcher(
        master="""
            from elasticdl.cluster.local.localcluster import LocalCluster
            from elasticdl.cluster.cluster import process_name
            from elasticdl.cluster.local.place import own_place
            place = own_place()
            cluster = LocalCluster(place.launcher_address, place.token())
            for name in ("worker-0-1", "worker-1-1"):
                cluster.launch(process_name(name))
            seen = []
            while len(seen) < 2:
                seen += cluster.events(30)
            print(*[event.pid for event in seen])
        """,
        worker="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()",
    )
    assert made.wait(WAIT) is not None
    pids = [int(pid) for pid in place.log_path("master-0-1").read_text().split()]
    assert len(pids) == 2
    assert not any(map(_lives, pids))
    assert made.processes() == {}


def test_kill_ends_everything_at_once(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    made = launcher()
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(0))
    until(cluster, lambda event: isinstance(event, ProcessStarted))
    pids = list(made.processes().values())
    assert len(pids) == 2
    made.kill()
    result = made.wait(WAIT)
    assert result is not None
    assert result.code == 130
    assert not any(map(_lives, pids))
    with pytest.raises(ConnectionError):
        until(cluster, lambda event: False)
    cluster.close()


def test_children_end_when_the_launcher_dies(tmp_path: Path, place: JobPlace) -> None:
    """And what they have forked, which knows of no launcher."""
    import subprocess

    child = (
        "from elasticdl.cluster.local.parentdeath import watch_parent; from elasticdl.cluster.local.place import own_place; "
        "watch_parent(own_place().close); import os, signal; forked = os.fork(); "
        "forked and print(forked, flush=True); signal.pause()"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import sys, signal, pathlib
                from elasticdl.cluster.cluster import Role
                from elasticdl.cluster.local.processes import Launcher
                from elasticdl.cluster.local.place import open_place
                launcher = Launcher(open_place(pathlib.Path({str(place.path)!r})), {{Role.MASTER: [sys.executable, "-c", {child!r}]}})
                launcher.start()
                print(*launcher.processes().values(), flush=True)
                signal.pause()
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    forked = int(_eventually(lambda: place.log_path("master-0-1").read_text().strip()))
    assert _lives(forked)
    process.kill()
    process.wait()
    process.stdout.close()
    _eventually(lambda: not _lives(pid))
    _eventually(lambda: not _lives(forked))
    assert not place.sockets.exists()
    assert not (place.path / "token").exists()


def test_a_wrong_token_and_noise_are_refused(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    made = launcher()
    with pytest.raises(ConnectionError, match="does not know the job's token"):
        LocalCluster(place.launcher_address, b"x" * 32)
    for noise in (
        b"\0" * 10_000,
        b"{}\n",
        b'{"launch":"worker-0-1"}\n',
        b"[1]\n",
        b'{"hello":1,"token":""}\n',
        b'{"hello":3,"nonce":7}\n',
        b'{"proof":""}\n',
    ):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(WAIT)
            raw.connect(place.launcher_address.removeprefix("unix:"))
            raw.sendall(noise)
            assert _ended(raw), noise
    assert [name.role for name in made.processes()] == [Role.MASTER]
    right = LocalCluster(place.launcher_address, place.token())
    right.launch(worker(0))
    until(right, lambda event: isinstance(event, ProcessStarted))
    right.close()


def test_a_program_that_is_missing_is_reported(place: JobPlace) -> None:
    notices: list[str] = []
    made = Launcher(
        place,
        {Role.MASTER: [sys.executable, "-c", SLEEP], Role.WORKER: ["/nonexistent/python"]},
        notices.append,
    )
    made.start()
    cluster = LocalCluster(place.launcher_address, place.token())
    cluster.launch(worker(0))
    (ended,) = until(cluster, lambda event: isinstance(event, ProcessEnded))
    assert isinstance(ended, ProcessEnded)
    assert (ended.name, ended.code, ended.blame) == (worker(0), None, Blame.START)
    assert "/nonexistent/python" in ended.text
    assert "/nonexistent/python" in notices[0]
    cluster.close()
    made.kill()
    assert made.wait(WAIT) is not None


def test_files_are_private(place: JobPlace, launcher: Callable[..., Launcher]) -> None:
    launcher()
    assert stat.S_IMODE(place.sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.log_path("master-0-1").stat().st_mode) == 0o600


def _ended(raw: socket.socket) -> bool:
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _eventually(look: Callable[[], Any]) -> Any:
    """Look until it is true: for what another process does without telling us."""
    import time

    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        try:
            if found := look():
                return found
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise AssertionError("it did not happen")
