"""Ctrl-C on a terminal while a job runs on a cluster: the person decides whether it ends or continues alone."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.api import Api

from .control_plane import ControlPlane
from .jobs import ELASTICDL, ROOT, environment
from .processes import wait_for
from .rights import masters_may

SECONDS = 60.0


class Terminal:
    """`elasticdl train` on a terminal, and the keys of its person."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._keys, inside = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            env={**environment, "COLUMNS": "200"},
        )
        os.close(inside)
        self.text = ""

    def until(self, word: str) -> None:
        """Read until the terminal shows a word."""
        end = time.monotonic() + SECONDS
        while word not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self._keys], [], [], 1.0)[0]:
                try:
                    self.text += os.read(self._keys, 4096).decode(errors="replace")
                except OSError:
                    pytest.fail(f"{word!r} was never shown, and the command has ended:\n{self.text}")

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._keys, f"{line}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Close the window."""
        self.process.kill()
        self.process.wait()
        os.close(self._keys)


@pytest.fixture
def terminal(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Terminal]:
    """A job whose master finds no node, watched on a terminal."""
    masters_may(control_plane, api)
    settings = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "iris.dnn_iris.custom_model",
        "training_data": "/data",
        "job_name": "test-job",
        "image_name": "elasticdl:test",
        "namespace": api.namespace,
    }
    command = [ELASTICDL, "train", *(f"--{name}={value}" for name, value in settings.items())]
    made = Terminal(command, environment(control_plane), tmp_path)
    made.until("waits: no nodes available")
    yield made
    made.close()


def wish(api: Api) -> str:
    return str(api.get("Job", "test-job")["metadata"]["annotations"].get(manifests.STOP, ""))


def test_a_person_leaves_and_the_job_goes_on(terminal: Terminal, api: Api) -> None:
    terminal.interrupt()
    terminal.until("[s/d]")
    terminal.type("d")
    terminal.until(f"elasticdl status test-job --namespace={api.namespace}")
    assert terminal.process.wait(SECONDS) == 130
    assert wish(api) == ""


def test_a_person_ends_the_job(terminal: Terminal, api: Api) -> None:
    terminal.interrupt()
    terminal.until("[s/d]")
    terminal.type("s")
    wait_for("the wish", lambda: wish(api) == "interrupt", SECONDS)
    terminal.until("once more to leave it alone")
    terminal.interrupt()
    assert terminal.process.wait(SECONDS) == 130


def test_a_second_key_at_the_question_leaves(terminal: Terminal, api: Api) -> None:
    terminal.interrupt()
    terminal.until("[s/d]")
    terminal.interrupt()
    assert terminal.process.wait(SECONDS) == 130
    assert wish(api) == ""
