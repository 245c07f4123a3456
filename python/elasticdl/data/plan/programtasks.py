"""The tasks of a program that processes records once: each is so many records in a row, however many workers there are."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadSetting

MOST = 10_000
"""Tasks of a job: a master keeps what has become of each, and looks through them for each that it gives away."""


def tasks_of_program(shards: Sequence[Shard], records_per_task: int) -> OnePass:
    """Return the tasks; none has records of two shards. Raises BadSetting for tasks of nothing or too many, BadData without records."""
    if records_per_task < 1:
        raise BadSetting(
            f"elasticdl.shards: records_per_task is {records_per_task}; a task has at least 1 record"
        )
    tasks = OnePass(shards, records_per_task, per_task=1)
    if tasks.num_tasks > MOST:
        enough = -(-tasks.num_records // MOST)
        remedy = (
            f"use records_per_task={enough} or more"
            if len(shards) < MOST // 2
            else "join files, as no task has records of two"
        )
        raise BadSetting(
            f"elasticdl.shards: {tasks.num_records:,} records make {tasks.num_tasks:,} tasks of {records_per_task:,}, and a job has "
            f"{MOST:,} at most; {remedy}"
        )
    return tasks
