"""Profiles as tests ask for them, and what has to hold of each."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from .conftest import ELASTICDL, SECONDS


def profiled(output: Path, *options: str) -> str:
    """Profile the job `test` with the command; return what it says."""
    done = ask_for_profile(f"--output={output}", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask_for_profile(*options: str) -> subprocess.CompletedProcess[str]:
    command = [ELASTICDL, "profile", "test", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def steps_in(path: Path) -> dict[str, list[set[str]]]:
    """Return the phases of each worker's steps, by its name, once they are checked: none overlaps, all are inside of their step."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    spans = [one for one in events if one["ph"] == "X"]
    phases = defaultdict[tuple[int, int], list[Any]](list)
    for one in spans:
        if one["cat"] == "phase":
            phases[one["pid"], one["args"]["step"]].append(one)
    found: dict[str, list[set[str]]] = {name: [] for name in names.values()}
    ends = dict.fromkeys(names, 0)
    for step in (one for one in spans if one["cat"] == "step"):
        inside = phases.pop((step["pid"], step["args"]["step"]))
        assert step["ts"] >= ends[step["pid"]], "steps of a worker come one after the other"
        at = step["ts"]
        for phase in inside:
            assert phase["ts"] >= at, f"{phase} overlaps the one before it"
            at = phase["ts"] + phase["dur"]
        ends[step["pid"]] = step["ts"] + step["dur"]
        assert at <= ends[step["pid"]], f"{inside[-1]} is longer than its step"
        assert sum(phase["dur"] for phase in inside) <= step["dur"]
        found[names[step["pid"]]].append({phase["name"] for phase in inside})
    assert not phases, "each phase belongs to a step"
    return found
