"""The tasks of a program in this process alone: the same ones, in their order, and the same files; no master, thread or connection."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from elasticdl.data.plan.programtasks import tasks_of_program
from elasticdl.data.readers.patience import Patience
from elasticdl.errors import BadModel, BadSetting, Unwritable
from elasticdl.files.predictions import marked_draft_of, parts_of
from elasticdl.worker.shards.session import LEFT_EARLY
from elasticdl.worker.shards.source import Room, Source
from elasticdl.worker.shards.task import ShardTask


class AloneTasks:
    """Implements `elasticdl.worker.shards.face.Tasks`."""

    def __init__(self, output: str) -> None:
        """`output`: the directory of the tasks' files, empty if there are none. Raises BadSetting if it exists."""
        self._output = Path(output).absolute() if output else None
        self._draft: Path | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="elasticdl-", ignore_cleanup_errors=True)
        self._task: ShardTask | None = None
        self._following = 0
        self._begun = self._over = False
        if output and os.path.lexists(output):
            raise BadSetting(
                f"elasticdl.shards: the output {output!r} exists; the files of tasks go to a new directory, so name another one, or "
                "remove it"
            )

    @property
    def room(self) -> Room:
        """Return what reading files needs."""
        return Room(Path(self._folder.name), Patience())

    def begin(self, source: Source, records_per_task: int) -> None:
        """Take what is processed. Raises BadInput for unusable data."""
        self._source, self._tasks = source, tasks_of_program(source.shards, records_per_task)
        self._begun = True
        if self._output is not None:
            self._draft = marked_draft_of(self._output, os.urandom(8).hex())
            try:
                parts_of(self._draft).mkdir(parents=True)
            except OSError as error:
                raise BadSetting(
                    f"elasticdl.shards: the output {self._output} can't be written: {error.strerror}"
                ) from None

    def next(self) -> ShardTask | None:
        """Let the task before be done, and return the next one; None when all are, and the files are in their place."""
        if self._task is not None:
            self._task.done()
            self._task = None
        if self._following == self._tasks.num_tasks:
            self._publish()
            return None
        directory = None if self._draft is None else parts_of(self._draft)
        self._task = ShardTask(self._tasks, self._following, self._source, directory, lambda: None)
        self._following += 1
        return self._task

    def _publish(self) -> None:
        if self._draft is not None and self._output is not None and not self._over:
            try:
                parts_of(self._draft).rename(self._output)
            except OSError as error:
                raise Unwritable(
                    f"the files of tasks can't be put at {self._output}", error, "start the program again"
                ) from None
        self._over = True
        self._remove()

    def finish(self) -> None:
        """Take the program's end. Raises BadModel if tasks are left."""
        if self._begun and not self._over:
            self.fail(BadModel(LEFT_EARLY))
            raise BadModel(LEFT_EARLY)

    def fail(self, error: BaseException) -> None:
        """Leave nothing: the program has failed."""
        self._remove()

    def _remove(self) -> None:
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)
        self._folder.cleanup()
