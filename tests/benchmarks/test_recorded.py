"""What the documentation keeps of benchmarks: figures on one scale, each part's last run, and never one of code that no commit has."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import recorded
from benchmarks.recorded import Bar, Part, bar, judge

PART = Part(
    "ring", "All-reduce.", "2026-01-31", "0123abcd", "2 cores", 7, "| what |", (Bar("one", "2.0×", "aim", 2.0, 2.0),)
)  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "must", "aim", "times", "mark"),
    [
        (10.0, 5.0, 20.0, 2.0, 4.0),  # the more the better
        (2.5, 5.0, 20.0, 0.5, 4.0),
        (0.1, 0.2, 0.05, 2.0, 4.0),  # the less the better
        (0.4, 0.2, 0.05, 0.5, 4.0),
        (-1.5, 2.0, 0.5, 1000.0, 4.0),  # sooner than what it is beside
    ],
)
def test_figures_of_both_kinds_have_one_scale(
    figure: float, must: float, aim: float, times: float, mark: float
) -> None:
    found = bar("what", figure, "shown", "aim", must, aim)
    assert (found.times, found.aim) == pytest.approx((times, mark))


@pytest.mark.parametrize(
    ("figure", "must", "aim", "verdict"),
    [
        (20.0, 5.0, 20.0, "aim"),  # the more the better
        (19.9, 5.0, 20.0, "must"),
        (4.9, 5.0, 20.0, "short"),
        (0.05, 0.2, 0.05, "aim"),  # the less the better
        (0.2, 0.2, 0.05, "must"),
        (0.21, 0.2, 0.05, "short"),
        (math.nan, 0.2, 0.05, "short"),
    ],
)
def test_a_figure_reaches_its_aim_or_what_it_must_be_or_is_short(
    figure: float, must: float, aim: float, verdict: str
) -> None:
    assert judge(figure, must, aim) == verdict


def test_the_last_run_of_a_part_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "FILE", tmp_path / "benchmarks.json")
    assert recorded.load() == []
    other = dataclasses.replace(PART, name="fit")
    again = dataclasses.replace(PART, day="2026-02-01")
    for one in (PART, other, again):
        recorded.save(one, bench.PARTS)
    assert recorded.load() == [other, again]  # in the order of the parts


def test_a_run_is_recorded_of_a_commit_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="git does not tell"):
        recorded.commit()
    (tmp_path / "code.py").write_text("1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "code.py"], [*identity, "commit", "--quiet", "--message=one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{8}", recorded.commit())
    (tmp_path / "code.py").write_text("2\n")
    with pytest.raises(RuntimeError, match=r"M code\.py"):
        recorded.commit()


def test_figures_of_the_smallest_sizes_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--smallest", "--record"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert "mean nothing" in capsys.readouterr().err


def test_the_documentation_has_all_parts_with_the_verdicts_of_their_tables() -> None:
    parts = recorded.load()
    assert [part.name for part in parts] == list(bench.PARTS)
    for part in parts:
        assert len(re.findall(r"\(short\)|  short$", part.table, re.M)) == sum(
            bar.verdict == "short" for bar in part.bars
        ), part.name
