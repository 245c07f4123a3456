"""A task, as a program sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from elasticdl.data.plan.onepass import OnePass
from elasticdl.errors import BadSetting
from elasticdl.worker.shards.output import TaskOutput
from elasticdl.worker.shards.source import Source

_SIGN_SECONDS = 1.0
"""Between two signs of life of a program that goes through records."""


class ShardTask:
    """Some records in a row, which this process processes.

    It has a length, and can be iterated over: its records, which are numbers if the source is a number.

    Attributes:
        number: of the task, from 0; the same whichever worker does it.
        shard: where its records are: the name of a file, or of a part of one.
        start: number of its first record there.
        end: one past the last one.
    """

    def __init__(
        self, tasks: OnePass, number: int, source: Source, directory: Path | None, alive: Callable[[], object]
    ) -> None:
        """Make one.

        Args:
            tasks: all tasks.
            number: of this one.
            source: of its records.
            directory: where its file goes, None if nowhere.
            alive: gives a sign of life.
        """
        self._place = tasks.task_by_id(0, number)
        self.number = number
        self.shard = self._place.shard.name
        self.start, self.end = self._place.start, self._place.end
        self._source, self._directory, self._alive = source, directory, alive
        self._output: TaskOutput | None = None

    def __len__(self) -> int:
        """Return the number of its records."""
        return self.end - self.start

    def __iter__(self) -> Iterator[Any]:
        """Read its records. Raises BadData."""
        sign = time.monotonic() + _SIGN_SECONDS
        for record in self._source.read(self._place):
            yield record
            if time.monotonic() >= sign:
                self._alive()
                sign = time.monotonic() + _SIGN_SECONDS

    def columns(self) -> Mapping[str, Any]:
        """Read its records as NumPy arrays, one for each column of a table. Raises BadData, BadSetting if records have no columns."""
        return self._source.columns(self._place)

    def __repr__(self) -> str:
        """Return what people call it."""
        return f"task {self.number}: records {self.start:,} to {self.end - 1:,} of {self.shard!r}"

    def output(self, suffix: str = "") -> TaskOutput:
        """Return the path at which to write this task's file; it becomes `part-NUMBER` with this suffix when the task is done.

        Raises BadSetting if there is no directory for such files, or if the task has a file already.
        """
        if self._directory is None:
            raise BadSetting(
                "task.output: there is no directory for it; name a new one with --output of `elasticdl run`, or, where the program runs "
                "alone, with elasticdl.shards(..., output=DIR)"
            )
        if self._output is not None:
            raise BadSetting("task.output was called before in this task; a task has one file")
        self._output = TaskOutput(self._directory, self.number, suffix)
        return self._output

    def done(self) -> None:
        """Publish its file. Raises BadSetting or Unwritable."""
        if self._output is not None:
            self._output.publish()

    def drop(self) -> None:
        """Drop its file: the task is not done."""
        if self._output is not None:
            self._output.drop()
