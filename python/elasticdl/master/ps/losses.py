"""What the loss of a server or a worker means for the job, as people hear it: sentences, and nothing that decides."""

from __future__ import annotations

from elasticdl.master.core.records import Journal
from elasticdl.master.ps.placementplan import saved_position
from elasticdl.spec.jobspec import PsRestore

RUNS = 8
"""Runs of task numbers that a message names."""


def of_slots(journal: Journal, restore: PsRestore, *, accumulates: bool) -> str:
    """Return what follows when no copy of some slots is left; `journal`: that says so already."""
    which = "all slots" if accumulates else "they"
    how = "begin anew" if journal.saved is None else "are restored from the last snapshot"
    text = f"no copy of its slots is left: {which} {how}, and "
    if restore is not PsRestore.SKIP and journal.stopping is not None:
        return f"{text}what was trained since then is lost, because the job was stopped"
    if restore is not PsRestore.SKIP:
        return f"{text}the tasks since then are trained once more"
    position, done = saved_position(journal), journal.done
    tasks = [task for task in (*range(done.low), *done.above) if task not in position]
    lost = f"what the tasks {_runs(tasks)} have done to them is lost" if tasks else "nothing is lost"
    return f"{text}{lost} (--ps_restore=skip)"


def of_worker(journal: Journal, name: str, cause: str, continues: str, *, ends: bool) -> str:
    """Return what the end of a worker means.

    Args:
        journal: what is journalled.
        name: of the worker.
        cause: of its end.
        continues: who has its tasks next.
        ends: nothing is trained any more.
    """
    failed = next((error.signature for error in journal.errors if error.worker == name), None)
    why = cause if failed is None else f"it failed ({failed})"
    if ends:
        return f"{name} has ended: {why}; nothing is left to train, and another one writes the model"
    return f"{name} is lost: {why}; {continues} with its tasks"


def _runs(numbers: list[int]) -> str:
    """Return ascending numbers for people: `3, 5 to 9`, at most a few of them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:RUNS]]
    return ", ".join(shown) + (f" and others, {len(numbers)} in all," if len(runs) > RUNS else "")
