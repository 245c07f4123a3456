"""A launcher sees that a child was killed before its memory is gone, and never takes one for killed that still runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.local import exiting
from elasticdl.cluster.local.exiting import Ends, killed_by

SECONDS = 30.0
TRIES = 10
RUNNING, EXITING = 0x400000, 0x400004
PREPARED = """
import ctypes, os, signal, sys, threading, time
from elasticdl.cluster.local.exiting import announce
announce()
"""

Begin = Callable[[str], tuple["subprocess.Popen[str]", Ends, str]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start programs with their ends; each has printed a line once it is returned."""
    begun: list[tuple[subprocess.Popen[str], Ends]] = []

    def start(program: str) -> tuple[subprocess.Popen[str], Ends, str]:
        ends = Ends()
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=ends.theirs,
            env={**os.environ, **ends.environment},
        )
        ends.started()
        begun.append((process, ends))
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said
        return process, ends, said

    yield start
    for process, ends in begun:
        process.kill()
        process.communicate()
        ends.close()


def ended(process: subprocess.Popen[str]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_kill_is_seen_before_the_memory_is_gone(begin: Begin) -> None:
    """The child's memory takes longer to take down than the look; on a busy machine not each time."""
    for _ in range(TRIES):
        process, ends, _ = begin(
            PREPARED
            + "kept = bytearray(os.urandom(1 << 20)) * 512; print('ready', flush=True); signal.pause()"
        )
        process.kill()
        assert ends.wait_killed(process.pid) == signal.SIGKILL
        if not ended(process):
            return
    pytest.fail(f"{TRIES} times a process had ended for its parent before it was seen to be killed")


@pytest.mark.parametrize(
    ("last", "signalled"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", signal.SIGSEGV),
        ("threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start(); signal.pause()", signal.SIGKILL),
        ("sys.exit(3)", None),
        ("os._exit(0)", None),
    ],
)  # fmt: skip
def test_only_an_end_by_a_signal_is_told_early(begin: Begin, last: str, signalled: int | None) -> None:
    process, ends, _ = begin(PREPARED + f"print('ready', flush=True); {last}")
    assert ends.wait_killed(process.pid) == signalled
    process.wait(SECONDS)


def test_a_program_that_announces_nothing_ends_all_the_same(begin: Begin) -> None:
    process, ends, _ = begin("print('ready', flush=True); import signal; signal.pause()")
    process.kill()
    assert ends.wait_killed(process.pid) == signal.SIGKILL
    assert process.wait(SECONDS) == -signal.SIGKILL


def test_one_that_gives_its_ends_away_ends_all_the_same(begin: Begin) -> None:
    """What holds the ends lives on: the child's own end is seen."""
    process, ends, holder = begin(
        """
        import os, signal, subprocess, sys
        held = tuple(int(one.split(":")[0]) for one in os.environ["ELASTICDL_EXIT_SOCKETS"].split(","))
        other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], pass_fds=held, stdout=subprocess.DEVNULL)
        print(other.pid, flush=True)
        signal.pause()
    """
    )
    process.kill()
    try:
        assert ends.wait_killed(process.pid) == signal.SIGKILL
        assert ended(process)
    finally:
        os.kill(int(holder), signal.SIGKILL)


OTHER = """
import os
numbers = [int(one.split(":")[0]) for one in os.environ["ELASTICDL_EXIT_SOCKETS"].split(",")]
for number in numbers:
    os.dup2(1, number)
from elasticdl.cluster.local.exiting import announce
announce()
print([os.fstat(number).st_ino == os.fstat(1).st_ino for number in numbers])
"""


def test_a_program_with_the_variable_alone_keeps_what_it_has_open(begin: Begin) -> None:
    """One that a worker has begun: its descriptors of these numbers are other files."""
    process, ends, said = begin(
        f"""
        import signal, subprocess, sys
        begun = subprocess.run([sys.executable, "-c", {OTHER!r}], stdout=subprocess.PIPE, text=True)
        print(begun.stdout, end="", flush=True)
        signal.pause()
    """
    )
    assert said == "[True, True]\n"
    process.kill()
    assert ends.wait_killed(process.pid) == signal.SIGKILL


def test_what_a_child_has_forked_does_not_hide_its_end(begin: Begin) -> None:
    """Data is loaded by forked processes, which have what their parent had open."""
    for _ in range(TRIES):
        process, ends, forked = begin(
            PREPARED
            + """
kept = bytearray(os.urandom(1 << 20)) * 512
forked = os.fork()
if not forked:
    signal.pause()
print(forked, flush=True)
signal.pause()
"""
        )
        process.kill()
        assert ends.wait_killed(process.pid) == signal.SIGKILL
        early = not ended(process)
        os.kill(int(forked), signal.SIGKILL)
        if early:
            return
    pytest.fail(f"{TRIES} times a process had ended for its parent before it was seen to be killed")


def test_threads_that_hand_on_to_each_other_are_no_end(begin: Begin) -> None:
    """The first thread has ended, and of the others each begins the next one and ends."""
    process, _, _ = begin(
        PREPARED
        + """
def hand_on():
    threading.Thread(target=hand_on).start()
for _ in range(5):
    hand_on()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    )
    assert [killed_by(process.pid) for _ in range(2000)] == [None] * 2000
    process.kill()
    until = time.monotonic() + SECONDS
    while killed_by(process.pid) != signal.SIGKILL:
        assert time.monotonic() < until


def test_a_program_that_becomes_another_one_is_no_end(begin: Begin) -> None:
    """All threads but the one that calls exec exit. The other program sleeps, so that it lives while it is looked at."""
    process, ends, _ = begin(
        PREPARED
        + """
print('ready', flush=True)
program = [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(3)"]
threading.Thread(target=os.execv, args=(sys.executable, program)).start()
signal.pause()
"""
    )
    assert ends.wait_killed(process.pid) is None
    assert process.wait(SECONDS) == 3


def test_the_first_thread_alone_is_no_end(begin: Begin) -> None:
    """It has begun to exit, and the process lives on."""
    process, _, _ = begin(
        PREPARED
        + """
threading.Thread(target=time.sleep, args=(1000,)).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    )
    until = time.monotonic() + SECONDS
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
    assert killed_by(process.pid) is None
    assert not ended(process)


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), OSError(38, "Function not implemented")]
)
def test_what_is_not_seen_is_waited_for_as_ever(
    error: OSError, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise error

    process, ends, _ = begin(PREPARED + "print('ready', flush=True); signal.pause()")
    process.kill()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        assert ends.wait_killed(process.pid) is None
    monkeypatch.setattr(os, "pidfd_open", fail)
    assert ends.wait_killed(process.pid) is None
    monkeypatch.setattr(socket, "socketpair", fail)
    without = Ends()
    assert (without.theirs, without.environment) == ((), {})
    assert without.wait_killed(process.pid) is None


def test_a_kernel_that_does_not_divide_descriptors(begin: Begin) -> None:
    """The process does what it does, and its end is seen when it comes."""
    process, ends, _ = begin(
        """
        import os, signal
        from elasticdl.cluster.local import exiting
        exiting._CLOSE_RANGE = 1 << 20  # no system call
        exiting.announce()
        print("ready", flush=True)
        signal.pause()
    """
    )
    process.kill()
    assert ends.wait_killed(process.pid) in (None, signal.SIGKILL)
    assert process.wait(SECONDS) == -signal.SIGKILL


# ------------------------------------------------------------------ what /proc says


def thread(process: Path, number: int, flags: int) -> None:
    """Write what /proc says of a thread."""
    write(process / "task" / str(number), number, flags, 0, 0)


def write(folder: Path, number: int, flags: int, threads: int, code: int) -> None:
    fields = [0] * 52
    fields[9 - 1], fields[20 - 1], fields[52 - 1] = flags, threads, code
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(" ".join([str(number), "(a) name)", "S", *map(str, fields[3:])]))


@pytest.mark.parametrize(
    ("threads", "number", "code", "expected"),
    [
        ({7: EXITING, 8: EXITING}, 2, 9, 9),
        ({7: EXITING}, 1, 11 | 0x80, 11),  # with a core dump
        ({7: EXITING}, 1, 0, 0),  # not shown, or an end without an error
        ({7: EXITING}, 1, 3 << 8, 0),  # exit code 3
        ({7: EXITING, 8: RUNNING}, 2, 9, None),
        ({7: RUNNING}, 1, 0, None),
        ({7: EXITING, 8: EXITING}, 3, 9, None),  # the list lacks one
    ],
)
def test_all_threads_must_have_begun_to_exit(
    threads: dict[int, int], number: int, code: int, expected: int | None, tmp_path: Path
) -> None:
    for one, flags in threads.items():
        thread(tmp_path / "7", one, flags)
    write(tmp_path / "7", 7, EXITING, number, code)
    assert killed_by(7, tmp_path) == expected
    assert killed_by(9, tmp_path) is None


def test_one_that_goes_while_they_are_counted_may_stand_for_one_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are listed and two counted, but one of the two that were listed has gone by then."""
    for number in (7, 8):
        thread(tmp_path / "7", number, EXITING)
    write(tmp_path / "7", 7, EXITING, 2, 9)
    assert killed_by(7, tmp_path) == 9
    read = exiting._fields

    def late(folder: Path) -> list[bytes]:
        if folder == tmp_path / "7" and (tmp_path / "7/task/8").exists():
            shutil.rmtree(tmp_path / "7/task/8")
        return read(folder)

    monkeypatch.setattr(exiting, "_fields", late)
    assert killed_by(7, tmp_path) is None
