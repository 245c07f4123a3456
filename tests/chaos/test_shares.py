"""How the faults of a chaos run are shared among kinds and jobs, and how they are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.tools.chaos import Injected
from elasticdl.tools.faults import GROUP, FaultKind
from tests.chaos.__main__ import MORE, Harness, ProgramHarness, Run, empty_and_hold, quotas


@pytest.mark.parametrize("faults", [12, 60, 200])
def test_every_kind_has_its_least(faults: int) -> None:
    quota = quotas(faults, GROUP, MORE)
    assert sum(quota.values()) == faults
    assert quota.keys() == set(GROUP)
    assert min(quota.values()) >= max(1, faults // 20)


def test_every_framework_has_its_part_of_every_kind(tmp_path: Path) -> None:
    quota = quotas(60, GROUP, MORE)
    harness = ProgramHarness(quota, 1.0, 0, tmp_path)
    for number, workers in enumerate((4, 3, 5)):
        run = Run(f"chaos{number + 1}", workers)
        harness.runs.append(run)
        share, finals, most = harness.share_of(run)
        assert finals == 1
        assert most == 19
        assert set(share) == set(GROUP) - {FaultKind.FINAL}
        assert all(1 <= number <= -(-quota[kind] // 3) for kind, number in share.items())
        run.injected += [Injected(FaultKind.FINAL, True, 1.0)]
        for kind in share:
            run.injected += [Injected(kind, True, 1.0)] * (quota[kind] // 3)
    assert FaultKind.FINAL not in harness.left()


def test_a_group_is_large_enough_for_what_is_left(tmp_path: Path) -> None:
    harness = Harness({FaultKind.PAIR: 1, FaultKind.KILL: 1}, 1.0, 0, tmp_path)
    harness.runs += [Run(f"chaos{number + 1}", 4) for number in range(3)]
    assert harness.next_group() == harness.groups[3] == 2
    share, _, _ = harness.share_of(Run("chaos4", 2))
    assert share == {FaultKind.KILL: 1}
    harness.runs[0].injected.append(Injected(FaultKind.KILL, True, 1.0))
    assert harness.next_group() == harness.groups[4] >= 3


def test_a_miss_is_counted_as_a_miss(tmp_path: Path) -> None:
    harness = Harness({FaultKind.STARTING: 1}, 1.0, 0, tmp_path)
    harness.runs.append(Run("chaos1", 4, [Injected(FaultKind.STARTING, False, 1.0)]))
    assert harness.left() == {FaultKind.STARTING: 1}
    assert not harness.passed
    (line,) = (line for line in harness.table().splitlines() if line.startswith(FaultKind.STARTING))
    assert line.removeprefix(FaultKind.STARTING).split() == ["1", "0", "1", "0"]


def test_a_directory_has_one_run(tmp_path: Path) -> None:
    directory = tmp_path / "chaos"
    empty_and_hold(directory)
    (directory / "job").mkdir()
    (directory / "job" / "log").touch()
    again = [sys.executable, "-m", "tests.chaos", "--faults", "12", "--directory", str(directory)]
    second = subprocess.run(again, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"another run of chaos uses {directory}" in second.stderr
    assert (directory / "job" / "log").exists()


def test_a_directory_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "log").touch()
    (tmp_path / "ids.csv").touch()
    empty_and_hold(tmp_path)
    assert list(tmp_path.iterdir()) == []
