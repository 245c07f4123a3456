"""Profiles as trace events, and what is refused before anything is recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.cluster.local import place as places
from elasticdl.control.protocol.profiling import Phase, Recorded, StepRecorded
from elasticdl.job.profile import Profile, trace
from elasticdl.spec.edge import build, from_arguments


def test_steps_and_phases_are_complete_events_in_microseconds() -> None:
    step = StepRecorded(
        1, 7, 1_000_999, 9_000, (Phase("read", 1_001_500, 1_499), Phase("ring", 1_002_999, 2))
    )
    made = Profile((Recorded("worker-10-1", step), Recorded("worker-2-1", step)), ("worker-0-1 is missing",))
    whole = trace("mnist-1", made)
    assert whole["otherData"] == {"job": "mnist-1", "missing": ["worker-0-1 is missing"]}
    events = whole["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {0: "worker-2-1", 1: "worker-10-1"}
    of_one = [one for one in events if one["pid"] == 1 and one["ph"] == "X"]
    assert of_one[0] == {
        "name": "step 7", "cat": "step", "ph": "X", "ts": 1000, "dur": 9, "pid": 1, "tid": 0, "args": {"step": 7},
    }  # fmt: skip
    assert [(one["name"], one["ts"], one["dur"]) for one in of_one[1:]] == [
        ("read", 1001, 1),
        ("ring", 1002, 1),
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--namespace=training"], "only jobs on this machine can be profiled, not those on Kubernetes"),
        (["--steps=0"], "--steps is between 1 and 1000; received 0"),
        (["--steps=1001"], "--steps is between 1 and 1000; received 1001"),
        ([], "has ended; only a job that runs can be profiled"),
        (["--output=."], "--output is the name of a file; . is a directory"),
        (["--output=a-file/x"], "--output: 'a-file/x' can't be written: no file can be made in "),
    ],
)
def test_what_is_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str], ended: str) -> None:
    assert cli.run(["profile", ended, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not [*Path().glob("*.json")]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a job whose folder is there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    with contextlib.closing(
        places.create(build(from_arguments({"model_def": "a.b", "training_data": "x"})))
    ) as place:
        return place.name
