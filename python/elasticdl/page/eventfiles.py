"""TensorBoard's event files of a job: training loss, records per second and workers, and metrics of evaluations, at their steps.

tensorboardX writes the records; TensorBoard's own writer would import TensorFlow where that is installed, as tensorboardX would PyTorch: it
finds that there is none, since a master has no use for the seconds and the memory that it takes. Each life of a master opens a
further file, which is how TensorBoard takes up what continues: https://github.com/tensorflow/tensorboard/blob/master/README.md.
A volume that does not take what is written, or does not answer, costs values and never the job.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from elasticdl.control.protocol.status import WORKING, EventKind, JobEvent, JobStatus

_log = logging.getLogger(__name__)

_MOST_WAITING = 100_000
"""Values that wait for a volume; more are dropped."""
_FLUSH_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_RETRY_SECONDS = 10.0
_STATUS_SECONDS = 1.0


class _Scalar(NamedTuple):
    tag: str
    value: float
    step: int
    time: float
    rare: bool
    """It is written at once: the next master would not write it."""


class EventFiles:
    """Observes a job, and writes what it sees on a thread of its own."""

    def __init__(
        self,
        directory: Path,
        now: Callable[[], float] = time.time,
        open_writer: Callable[[Path, int], Any] | None = None,
    ) -> None:
        """Write to a directory, which is made.

        Args:
            directory: where TensorBoard is to look.
            now: the time in seconds since the Unix epoch.
            open_writer: opens the file of this number, tensorboardX's if not given.
        """
        self._directory = directory
        self._now = now
        self._open = open_writer or _writer
        self._began = now()
        self._step = 0
        self._status_at = -math.inf
        self._files = 0
        self._waiting: queue.SimpleQueue[_Scalar | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="event files", daemon=True)
        self._thread.start()

    def event(self, event: JobEvent) -> None:
        """Take metrics of an evaluation; those of a time before this life of the master are in an earlier file."""
        if event.kind == EventKind.EVALUATED and event.time >= self._began:
            for name, value in event.values:
                self._put(name, value, event.step, rare=True)
        if event.kind in (EventKind.VIEW, EventKind.ROLLED_BACK):
            self._step = min(self._step, event.step)

    def status(self, status: JobStatus) -> None:
        """Take the rate, and how many workers there are, about once a second."""
        self.progress(status.step, status.loss)
        if self._now() < self._status_at + _STATUS_SECONDS or not status.step:
            return
        self._status_at = self._now()
        working = [one for one in status.workers if one.name.startswith("worker") and one.state in WORKING]
        self._put("workers", len(working), status.step)
        if status.records_per_second is not None:
            self._put("records_per_second", status.records_per_second, status.step)

    def progress(self, step: int, loss: float | None) -> None:
        """Take the loss of a step."""
        if step > self._step:
            self._step = step
            if loss is not None:
                self._put("loss", loss, step)

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        self._waiting.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _put(self, tag: str, value: float, step: int, *, rare: bool = False) -> None:
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(_Scalar(tag, value, step, self._now(), rare))

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        told = False
        while True:
            try:
                self._write_file()
                return
            except Exception as error:  # of volumes and of the library; a job does not end by what it shows
                if not told:
                    _log.warning("nothing can be written for TensorBoard to %s: %s", self._directory, error)
                told = True
            if self._wait_for_end(_RETRY_SECONDS):
                return

    def _write_file(self) -> None:
        """Write a file until the end of the job. Raises what the volume, or a missing package, raises."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files += 1
        writer = self._open(self._directory, self._files)
        flushed_at, is_flushed = time.monotonic(), True
        while True:
            try:
                scalar = self._waiting.get(timeout=_FLUSH_SECONDS)
            except queue.Empty:
                pass
            else:
                if scalar is None:
                    writer.close()
                    return
                writer.write_event(_event(scalar))
                is_flushed = False
                if scalar.rare:
                    flushed_at = -math.inf
            if not is_flushed and time.monotonic() - flushed_at >= _FLUSH_SECONDS:
                writer.flush()
                flushed_at, is_flushed = time.monotonic(), True

    def _wait_for_end(self, seconds: float) -> bool:
        """Drop what comes for some seconds; tell whether the job has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                if self._waiting.get(timeout=left) is None:
                    return True
            except queue.Empty:
                return False
        return False


class _WithoutTorch:
    """Says on this thread that PyTorch is not installed, so that nobody imports it for the sake of a type."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError for PyTorch, on this thread; leave all else to others."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("PyTorch is not needed here", name=name)


def _writer(directory: Path, number: int) -> Any:
    finder = _WithoutTorch()
    sys.meta_path.insert(0, finder)
    try:
        from tensorboardX.event_file_writer import EventsWriter
    finally:
        sys.meta_path.remove(finder)

    # Two lives of a master may begin in one second, which is all that tensorboardX tells files apart by.
    return EventsWriter(str(directory / "events"), f".{os.getpid()}.{number}")


def _event(scalar: _Scalar) -> Any:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    value = Summary.Value(tag=scalar.tag, simple_value=scalar.value)
    return Event(wall_time=scalar.time, step=scalar.step, summary=Summary(value=[value]))
