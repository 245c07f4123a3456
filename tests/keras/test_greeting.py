"""What TensorFlow's library says when it is loaded goes to a log; everything else still reaches the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SPOKEN = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795471432.498823    3918 port.cc:153] oneDNN custom operations are on.
"""
KEPT = """\
E0000 00:00:1795471432.498823    3918 cuda_fft.cc:467] Unable to register cuFFT factory
W0000 00:00:1795471432.498823    3918 a.cc:1] a warning
Traceback (most recent call last):
"""


def run(program: str, log: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has `log`, `say` (which writes to descriptor 2 as a library does) and `greeting_to`."""
    before = (
        "import os, sys; from pathlib import Path\n"
        "from elasticdl.keras.greeting import greeting_to\n"
        f"log = Path({str(log)!r})\n"
        "def say(text): os.write(2, text.encode())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", before + program],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_what_is_said_when_tensorflow_is_loaded(tmp_path: Path) -> None:
    """Really loaded: the lines are the library's own."""
    program = (
        "with greeting_to(log):\n from elasticdl.keras import runtime; runtime.import_keras()\nsay('after')"
    )
    done = run(program, tmp_path / "log")
    assert (done.returncode, done.stderr) == (0, "after"), done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines
    assert all(line.startswith(("I0000 00:00:", "WARNING: All log messages before absl")) for line in lines)


def test_only_lines_of_information_are_kept_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    done = run(f"with greeting_to(log):\n say({SPOKEN + KEPT!r})\nsay('after')", log)
    assert done.stderr == KEPT + "after"
    assert log.read_text() == "before\n" + SPOKEN


def test_an_error_of_the_import_is_shown_and_the_descriptor_is_as_before(tmp_path: Path) -> None:
    program = (
        "import stat\nwas = os.fstat(2); count = len(os.listdir('/proc/self/fd'))\n"
        "try:\n with greeting_to(log):\n  say('on the way\\n'); import elasticdl.nothing\n"
        "except ImportError as error:\n say(f'{error}\\n')\n"
        "now = os.fstat(2); assert (was.st_dev, was.st_ino) == (now.st_dev, now.st_ino)\n"
        "assert len(os.listdir('/proc/self/fd')) == count\n"
    )
    done = run(program, tmp_path / "log")
    assert done.stderr == "on the way\nNo module named 'elasticdl.nothing'\n"
    assert done.returncode == 0


def test_the_last_words_of_a_process_that_is_killed_meanwhile(tmp_path: Path) -> None:
    """As where the processor lacks an instruction that the library was compiled for."""
    program = (
        "import signal\nwith greeting_to(log):\n say('needs AVX\\nand'); os.kill(os.getpid(), signal.SIGILL)"
    )
    done = run(program, tmp_path / "log")
    assert done.returncode == -signal.SIGILL
    assert done.stderr == "needs AVX\nand"


@pytest.mark.parametrize("why", ["no directory", "no descriptor"])
def test_where_it_can_not_be_done_nothing_is_hidden(tmp_path: Path, why: str) -> None:
    log = tmp_path / ("nowhere/log" if why == "no directory" else "log")
    close = "os.close(2)\n" if why == "no descriptor" else ""
    program = (
        f"{close}with greeting_to(log):\n os.write(1, b'inside'){'' if close else f';say({SPOKEN!r})'}\n"
    )
    done = run(program, log)
    assert (done.returncode, done.stdout) == (0, "inside")
    assert done.stderr == ("" if close else SPOKEN)


def test_demos_have_it_in_a_file(tmp_path: Path) -> None:
    """As they run what evaluates a model: a process of its own that does not know this package."""
    spoken = f"import os; os.write(2, {SPOKEN + KEPT!r}.encode()); raise SystemExit(3)"
    call = f"by_plain_keras([sys.executable, '-I', '-c', {spoken!r}], log)"
    done = run(f"from examples.demo import by_plain_keras\nsys.exit({call})", tmp_path / "log")
    assert (done.returncode, done.stderr) == (3, KEPT)
    assert (tmp_path / "log").read_text() == SPOKEN


def test_whoever_wants_to_see_it_does(tmp_path: Path) -> None:
    program = "from elasticdl.keras import runtime; runtime.import_keras(log)"
    done = run(program, tmp_path / "log", TF_CPP_MIN_LOG_LEVEL="0")
    assert "I0000 00:00:" in done.stderr
    assert not (tmp_path / "log").exists()
