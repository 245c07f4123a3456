"""Every part of `make bench` runs, with the smallest sizes; what its figures are is no business of a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import recovery, ring

ROOT = Path(bench.__file__).parent.parent
PATIENCE = 600.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )  # fmt: skip


@pytest.mark.parametrize("part", bench.PARTS)
def test_a_part_runs(part: str, record_property: Callable[[str, object], None]) -> None:
    done = run("--smallest", part)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{part} took " in done.stdout
    seconds = done.stdout.partition(f"{part} took ")[2].split()[0]
    record_property("seconds", seconds)
    print(f"{part} took {seconds} s")


def test_an_unknown_part_is_refused() -> None:
    done = run("rings")
    assert done.returncode == 2
    assert "there is no rings; parts are recovery, fit, ring, servers, masters" in done.stderr


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
