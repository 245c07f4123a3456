"""What `--help` says, held against files; `python -m tests.cli.test_help` writes them anew."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from elasticdl import cli
from elasticdl.cli.commands import elasticdl
from elasticdl.spec.jobspec import JobKind, settings_of

HELP = Path(__file__).parent / "help"


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    """Yield the group's own name and those of all commands below it."""
    yield path
    for name, command in sorted(group.commands.items()):
        below = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, below)
        else:
            yield below


COMMANDS = list(commands(elasticdl))
HEAVY = {"tensorflow", "keras", "torch", "jax", "grpc", "rich", "pydantic", "numpy", "yaml"}


def written(command: str) -> Path:
    return HELP / f"{command.replace(' ', '-') or 'elasticdl'}.txt"


def help_of(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.run([*command.split(), "--help"]) == 0
    return out.getvalue()


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_as_written(command: str) -> None:
    assert help_of(command) == written(command).read_text()


def test_no_help_is_of_a_command_that_is_gone() -> None:
    assert {path.name for path in HELP.iterdir()} == {written(command).name for command in COMMANDS}


@pytest.mark.parametrize("kind", JobKind)
def test_every_setting_is_in_the_help_of_its_commands(kind: JobKind) -> None:
    text = help_of("run" if kind is JobKind.PROCESS else kind)
    for name in settings_of(kind).keys() - ({"job_command"} if kind is JobKind.PROCESS else set()):
        assert f"--{name} " in text


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["train", "--seed=x"], ["version"]])
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code = f"import sys, json; from elasticdl import cli; cli.run({arguments!r}); print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert HEAVY.isdisjoint(json.loads(run.stdout.splitlines()[-1]))


def test_nothing_heavy_is_imported_before_the_processes_are_started() -> None:
    code = "import sys, json, elasticdl.job.submit; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert HEAVY.isdisjoint(json.loads(run.stdout.splitlines()[-1]))


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for name in COMMANDS:
        written(name).write_text(help_of(name))
