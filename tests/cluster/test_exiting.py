"""A launcher sees that a child was killed before its memory is gone, and never takes one for killed that still runs."""

from __future__ import annotations

import os
import signal
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
        process.wait()
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
    process, ends, _ = begin(
        PREPARED
        + """
forked = os.fork()
if not forked:
    signal.pause()
print(forked, flush=True)
signal.pause()
"""
    )
    process.kill()
    assert ends.wait_killed(process.pid) == signal.SIGKILL


def test_threads_that_come_and_go_are_no_end(begin: Begin) -> None:
    process, _, _ = begin(
        PREPARED
        + """
print('ready', flush=True)
while True:
    for one in [threading.Thread(target=time.sleep, args=(0,)) for _ in range(20)]:
        one.start()
"""
    )
    assert [killed_by(process.pid) for _ in range(300)] == [None] * 300
    process.kill()
    until = time.monotonic() + SECONDS
    while killed_by(process.pid) != signal.SIGKILL:
        assert time.monotonic() < until


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


def test_no_descriptor_or_an_old_kernel_is_waited_for_as_ever(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(24, "Too many open files")

    process, ends, _ = begin(PREPARED + "print('ready', flush=True); signal.pause()")
    monkeypatch.setattr(os, "pidfd_open", fail)
    assert ends.wait_killed(process.pid) is None


# ------------------------------------------------------------------ what /proc says


def task(folder: Path, number: int, flags: int, code: int) -> None:
    numbers = [0] * 52
    numbers[9 - 1], numbers[52 - 1] = flags, code
    line = " ".join([str(number), "(a) name)", "S", *map(str, numbers[3:])])
    for place in (folder / "task" / str(number), *([folder] if folder.name == str(number) else [])):
        place.mkdir(parents=True, exist_ok=True)
        (place / "stat").write_text(line)


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ({7: (EXITING, 9), 8: (EXITING, 9)}, 9),
        ({7: (EXITING, 11 | 0x80)}, 11),  # with a core dump
        ({7: (EXITING, 9), 8: (RUNNING, 0)}, None),
        ({7: (RUNNING, 0)}, None),
        ({7: (EXITING, 0)}, None),  # not told, or an end without an error
        ({7: (EXITING, 3 << 8)}, None),  # exit code 3
    ],
)
def test_all_threads_must_have_begun_to_exit(
    threads: dict[int, tuple[int, int]], expected: int | None, tmp_path: Path
) -> None:
    for number, (flags, code) in threads.items():
        task(tmp_path / "7", number, flags, code)
    assert killed_by(7, tmp_path) == expected
    assert killed_by(9, tmp_path) is None


def test_a_thread_that_another_one_has_just_begun_is_found_by_the_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(tmp_path / "7", 7, EXITING, 9)
    read = exiting._fields

    def late(folder: Path) -> list[bytes]:
        task(tmp_path / "7", 8, RUNNING, 0)
        return read(folder)

    monkeypatch.setattr(exiting, "_fields", late)
    assert killed_by(7, tmp_path) is None
