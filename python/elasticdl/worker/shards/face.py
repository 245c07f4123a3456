"""`elasticdl.shards()`: a program goes through records once, in a job with other workers, or alone.

for task in elasticdl.shards("photos.parquet", records_per_task=512):
    with task.output(suffix=".csv") as path:
        write(path, [describe(record) for record in task])
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from operator import index
from typing import Any, Protocol

from elasticdl.errors import BadSetting
from elasticdl.worker.loop.ending import at_program_end
from elasticdl.worker.loop.starting import in_job
from elasticdl.worker.shards.source import Room, Source, open_source
from elasticdl.worker.shards.task import ShardTask

_alone = False
"""A program that runs alone has called `shards`."""


class Tasks(Protocol):
    """Where tasks come from."""

    @property
    def room(self) -> Room:
        """Return what reading files needs."""

    def begin(self, source: Source, records_per_task: int) -> None:
        """Say what is processed. Raises BadInput."""

    def next(self) -> ShardTask | None:
        """Let the task before be done, and return the next one; None when all are."""


def shards(
    source: Any,
    records_per_task: int = 512,
    *,
    output: str | os.PathLike[str] = "",
    reader_params: Mapping[str, Any] | None = None,
) -> Iterator[ShardTask]:
    """Go through records once, task by task: in a job (`elasticdl run --work=tasks`) those that this worker gets, alone all of them.

    A task is done at the next turn of the loop. One that was not, as its worker was lost, is done by another worker.

    Args:
        source: a number of records, a sequence with a length, or a path or URL of files that `train` reads, too.
        records_per_task: of a full task; those at the end of a file may have fewer.
        output: a new directory for the files of tasks, where the program runs alone; in a job it is --output.
        reader_params: of files, as --data_reader_params.

    Raises BadInput for what can't be processed, for a second call, in a job of steps, or if the job's other workers process something else.
    """
    tasks = _tasks(os.fspath(output))
    try:
        per_task = index(records_per_task)
    except TypeError:
        raise BadSetting(
            f"elasticdl.shards: records_per_task is a whole number, received {records_per_task!r}"
        ) from None
    tasks.begin(open_source(source, max(per_task, 1), reader_params or {}, tasks.room), per_task)
    return iter(tasks.next, None)


def _tasks(output: str) -> Tasks:
    global _alone
    if in_job("elasticdl.shards"):
        from elasticdl.spec.jobspec import JobKind
        from elasticdl.worker.loop.joining import join
        from elasticdl.worker.shards.session import JobTasks

        return join(JobKind.PROCESS, JobTasks)
    from elasticdl.worker.shards.alone import AloneTasks

    if _alone:
        # In a job it would come after the job's end, where nobody hears of it.
        raise BadSetting(
            "elasticdl.shards is called once in a program, because a job ends with its tasks; process other records in another program, or "
            "all of them in one sequence"
        )
    alone = AloneTasks(output)
    _alone = True
    at_program_end(alone)
    return alone
