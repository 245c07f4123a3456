"""Every part of `make bench` runs, with the smallest sizes; what its figures are is no business of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as bench
from benchmarks import recovery, ring, servers

ROOT = Path(bench.__file__).parent.parent
PATIENCE = 600.0


RUNNING: set[subprocess.Popen[str]] = set()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As in a terminal of its own: Linux shares processors between sessions, of which each process of a job has one. In that of the
        # tests a part and its peers shared one share with all tests beside them.
        start_new_session=True,
    ) as process:
        RUNNING.add(process)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            RUNNING.remove(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


LONGEST = ("recovery", "servers")

Starts = Callable[[str], Future[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def starts(request: pytest.FixtureRequest) -> Iterator[Starts]:
    """Two parts run at a time; where other tests run beside these, only the one that is asked for."""
    runs: dict[str, Future[subprocess.CompletedProcess[str]]] = {}
    with ThreadPoolExecutor(2) as pool:

        def start(part: str) -> Future[subprocess.CompletedProcess[str]]:
            if part not in runs:
                runs[part] = pool.submit(run, "--smallest", part)
            return runs[part]

        if "PYTEST_XDIST_WORKER" not in os.environ:
            wanted = [
                item.callspec.params["part"] for item in request.session.items
                if isinstance(item, pytest.Function) and item.function is test_a_part_runs
            ]  # fmt: skip
            for part in sorted(wanted, key=lambda part: part not in LONGEST):
                start(part)
        yield start
        for one in runs.values():
            one.cancel()
        for process in tuple(RUNNING):
            # Ctrl-C in the tests' terminal does not come to another session.
            process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_runs(part: str, starts: Starts, record_property: Callable[[str, object], None]) -> None:
    done = starts(part).result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{part} took " in done.stdout
    seconds = done.stdout.partition(f"{part} took ")[2].split()[0]
    record_property("seconds", seconds)
    print(f"{part} took {seconds} s")


def test_a_part_that_fails_is_named_and_ends_in_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(sizes: object) -> list[object]:
        raise RuntimeError("the job failed")

    whole = SimpleNamespace(SMALLEST=None, rows=lambda sizes: [], table=lambda rows: "no rows")
    monkeypatch.setattr(bench, "PARTS", ("broken", "whole"))
    monkeypatch.setitem(sys.modules, "benchmarks.broken", SimpleNamespace(SMALLEST=None, rows=rows))
    monkeypatch.setitem(sys.modules, "benchmarks.whole", whole)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--smallest"])
    assert bench.main() == 1
    out = capsys.readouterr().out
    assert "broken: failed after 0 s: the job failed" in out
    assert "whole took 0 s" in out


class Side:
    """A side that keeps what it is told to run."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def seconds(self, what: str, steps: int) -> float:
        self.ran.append(steps)
        return float(steps)

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


@pytest.mark.parametrize("steps", [2, 60])
def test_rows_are_made_before_time_is_taken(steps: int) -> None:
    """A push that makes rows costs several times one that changes rows; with few steps that was all that was measured."""
    side = Side()
    paces = servers.alternate({"ours": side}, "push", steps, 3)
    assert side.ran[0] >= servers.POOL * servers.WORKERS
    assert side.ran[1:] == [steps] * 3
    assert paces["ours"].rate == 1.0


def test_a_push_counts_as_settled_when_the_second_one_after_it_begins(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("".join(f"{at}\n" for at in (1.0, 2.5, 3.0, 4.5, 6.0)))
    assert servers.settled(tmp_path, 7, 2.0) == 4.5


def test_an_unknown_part_is_refused() -> None:
    done = run("rings")
    assert done.returncode == 2
    assert f"there is no rings; parts are recovery, fit, {', '.join(bench.PARTS[2:])}\n" in done.stderr


def test_a_peer_that_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ring, "GLOO_PYTHON", tmp_path / "venv/bin/python")
    assert not ring.prepare("torch.distributed", "torch", installs=False)
    assert f"not measured beside torch: it is not installed in {tmp_path}/venv" in capsys.readouterr().err
    case = ring.Case("1 MiB", 2, ring.MIB, must=4, aim=8)
    row = ring.Row(case, 1e-3, None, "unix")
    assert row.verdict == "missing"
    assert "| gloo is missing | missing |" in ring.table([row])
    after_kill = recovery.Row("kill", 0.1, 0.5, 0.2, missing="torchft")
    assert after_kill.verdict == "missing"
    assert "| torchft is missing |" in recovery.table([after_kill])
