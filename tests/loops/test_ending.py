"""How a program ends, as its session hears it: Python tells nobody the exit code at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from elasticdl.worker.loop.ending import at_program_end
from elasticdl.worker.raised import program_error


class Session:
    def finish(self):
        print("finished")

    def fail(self, error):
        print(program_error(error).traceback.splitlines()[0])
        return 1


at_program_end(Session())
try:
    sys.exit(4)
except SystemExit as ending:
    print("caught", ending.code)
"""


@pytest.mark.parametrize(
    ("ending", "code", "heard"),
    [
        ("sys.exit(3)", 1, "SystemExit: the program ended by sys.exit(3) (line 21 of "),
        ("sys.exit('no data')", 1, "SystemExit: the program ended by sys.exit('no data') (line 21 of "),
        ("sys.exit(0)", 0, "finished"),
        ("sys.exit()", 0, "finished"),
        ("", 0, "finished"),
        ("raise ValueError('no')", 1, "ValueError: no (line 21 of "),
    ],
)
def test_an_exit_code_is_a_failure_as_an_exception_is(
    tmp_path: Path, ending: str, code: int, heard: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM + ending + "\n", encoding="utf-8")
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[0] == "caught 4"
    assert ended.stdout.splitlines()[1].startswith(heard), ended.stdout + ended.stderr
    assert ended.returncode == code


HELD = """
import threading
from elasticdl.worker.loop.held import watch_end

go = threading.Event()
threading.Thread(target=go.wait, name="uploads").start()
threading.Thread(target=go.wait, name="beats", daemon=True).start()
threading.Thread(target=input, name="stdin").start()
watch_end(0.0)
"""


def test_threads_that_hold_up_the_end_are_named(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(HELD, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as held:
        assert held.stderr is not None
        assert "its threads stdin, uploads, and the job" in held.stderr.readline()
        held.kill()


def test_a_program_that_is_told_to_go_before_it_takes_part_ends_by_that_signal() -> None:
    """Its handler, which the main thread may be too busy to change, does not keep it."""
    program = (
        "import signal, threading\n"
        "from elasticdl.worker.loop.joining import _end_by_term\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "threading.Thread(target=_end_by_term).start()\n"
        "threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert ended.returncode == -signal.SIGTERM
