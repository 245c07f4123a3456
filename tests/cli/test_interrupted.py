"""Ctrl-C while a command still imports what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CTRL_C_AT_AN_IMPORT = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["CTRL_C_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
"""
COMMANDS = {
    "elasticdl": [str(Path(sys.executable).with_name("elasticdl"))],
    "python -m": [sys.executable, "-m", "elasticdl"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "module",
    [
        "elasticdl.cli.commands",
        "click",
        "elasticdl.cli.flags",
        "elasticdl.control.transport.coredumps",
        "elasticdl.cluster.local.place",
    ],
)
def test_it_ends_silently(tmp_path: Path, command: str, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_AT_AN_IMPORT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CTRL_C_AT": module}
    ran = subprocess.run(
        [*COMMANDS[command], "list"], env=environment, check=False, capture_output=True, text=True
    )
    # Once a command runs, click ends the line on which the terminal shows ^C.
    assert (ran.returncode, ran.stdout, ran.stderr.strip("\n")) == (130, "", "")


def test_a_command_can_tidy_up_what_it_has_begun() -> None:
    program = """
import signal
from elasticdl import cli
cli.run = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler) or 0
cli.main()
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout == "True\n"
