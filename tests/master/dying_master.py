"""A master that dies once in a moment that its first argument names, or stands still; the next one is an ordinary one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from elasticdl.job import master
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.events import End
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import Record, StoppingRecord, ViewRecord
from elasticdl.master.running.runner import Runner

STILL = 8.0
"""Seconds; longer than a member's heartbeats may be silent."""

MOMENT = sys.argv[1]
FLAG = Path(os.environ["DYING_MASTER_FLAG"])

append, tick, write_summary = Journal.append, Runner._tick, Runner._write_summary


def first_time() -> bool:
    try:
        FLAG.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def append_and_die(journal: Journal, number: int, record: Record) -> None:
    append(journal, number, record)
    if MOMENT == "stopping" and isinstance(record, StoppingRecord) and first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    if MOMENT == "thread" and isinstance(record, ViewRecord) and record.view.id > 1 and first_time():
        raise KeyError("an error in the thread that writes the journal")


def tick_slowly(runner: Runner[AllReduceMaster]) -> None:
    if MOMENT == "still" and runner._machine.view is not None and runner.history.step > 20 and first_time():
        time.sleep(STILL)
    tick(runner)


def die_before_the_summary(runner: Runner[AllReduceMaster], end: End) -> None:
    if MOMENT == "summary" and first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    write_summary(runner, end)


Journal.append = append_and_die  # type: ignore[method-assign]
Runner._tick = tick_slowly  # type: ignore[method-assign]
Runner._write_summary = die_before_the_summary  # type: ignore[method-assign]
master.main()
