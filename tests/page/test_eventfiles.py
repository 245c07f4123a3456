"""Event files for TensorBoard: read back record by record, and a volume that fails costs values only."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from elasticdl._core import TFRecordFile, index_tfrecord
from elasticdl.control.protocol.status import EventKind
from elasticdl.page import eventfiles
from elasticdl.page.eventfiles import EventFiles

from .jobs import Clock, event, status


def scalars(directory: Path) -> list[tuple[str, int, float, float]]:
    """Return (tag, step, value, time) of all files, the oldest first: TFRecord files, whose checksums the core verifies."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        with tempfile.TemporaryDirectory() as folder:
            count = index_tfrecord(str(path), f"{folder}/index")
            records = TFRecordFile(str(path), f"{folder}/index").read(range(count))
        first, *rest = map(Event.FromString, records)
        assert first.file_version == "brain.Event:2"
        found += [
            (value.tag, one.step, value.simple_value, one.wall_time)
            for one in rest
            for value in one.summary.value
        ]
    return found


def test_what_is_written(tmp_path: Path) -> None:
    clock = Clock()
    files = EventFiles(tmp_path / "new" / "logs", clock)
    files.progress(1, 0.5)
    files.progress(1, 0.5)
    files.progress(2, 0.25)
    files.event(
        event(900.0, EventKind.EVALUATED, step=1, values=(("val_loss", 9.0),))
    )  # of the master before
    files.event(event(1000.5, EventKind.EVALUATED, step=2, values=(("val_loss", 1.5), ("val_auc", 0.75))))
    files.status(status(2))
    files.status(status(2))
    clock.now += 1.0
    files.status(status(3, loss=0.125, rate=None))
    files.close()
    assert scalars(tmp_path / "new" / "logs") == [
        ("loss", 1, 0.5, 1000.0),
        ("loss", 2, 0.25, 1000.0),
        ("val_loss", 2, 1.5, 1000.0),
        ("val_auc", 2, 0.75, 1000.0),
        ("workers", 2, 1.0, 1000.0),
        ("records_per_second", 2, 8.0, 1000.0),
        ("loss", 3, 0.125, 1001.0),
        ("workers", 3, 1.0, 1001.0),
    ]


def test_steps_that_are_done_once_more_are_written_once_more(tmp_path: Path) -> None:
    files = EventFiles(tmp_path, Clock())
    files.progress(5, 0.5)
    files.event(event(1001.0, EventKind.VIEW, step=4))
    files.progress(5, 0.25)
    files.close()
    assert [(step, value) for _, step, value, _ in scalars(tmp_path)] == [(5, 0.5), (5, 0.25)]


def test_each_life_of_a_master_opens_a_further_file(tmp_path: Path) -> None:
    for step in (1, 2):
        process = subprocess.run([sys.executable, "-c", LIFE, str(tmp_path), str(step)], timeout=60)
        assert process.returncode == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(step for _, step, _, _ in scalars(tmp_path)) == [1, 2]


LIFE = """
import pathlib, sys
from elasticdl.page.eventfiles import EventFiles
files = EventFiles(pathlib.Path(sys.argv[1]))
files.progress(int(sys.argv[2]), 0.5)
files.close()
assert not {"tensorflow", "torch", "tensorboard"} & set(sys.modules)
"""


class Full:
    """A file on a volume that is full until `room` is set."""

    def __init__(self, room: threading.Event, written: list[int]) -> None:
        self._room = room
        self._written = written

    def write_event(self, one: Any) -> None:
        if not self._room.is_set():
            raise OSError(28, "No space left on device")
        self._written.append(one.step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Flushed:
    """A file that says when it is flushed."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.flushed = threading.Event()

    def write_event(self, one: Any) -> None:
        self.written.append(one.step)

    def flush(self) -> None:
        self.flushed.set()

    def close(self) -> None:
        pass


def test_metrics_of_an_evaluation_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master may be killed at any moment, and the next one does not write what this one has told."""
    monkeypatch.setattr(eventfiles, "_FLUSH_SECONDS", 1000.0)
    file = Flushed()
    files = EventFiles(tmp_path, Clock(), lambda directory, number: file)
    files.progress(1, 0.5)
    files.event(event(1000.5, EventKind.EVALUATED, step=2, values=(("val_loss", 1.5),)))
    assert file.flushed.wait(30)
    assert file.written == [1, 2]
    files.close()


def test_a_full_volume_costs_values_and_a_further_file_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(eventfiles, "_RETRY_SECONDS", 0.01)
    room, again, written = threading.Event(), threading.Event(), list[int]()

    def open_writer(directory: Path, number: int) -> Full:
        if number == 2:
            room.set()
            again.set()
        return Full(room, written)

    files = EventFiles(tmp_path, Clock(), open_writer)
    files.progress(1, 0.5)
    assert again.wait(30)
    files.progress(2, 0.25)
    files.close()
    assert written == [2]
    assert "No space left" in caplog.text


def test_what_was_lost_does_not_hold_up_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = EventFiles(tmp_path / "file" / "logs", Clock())  # no directory can be made there
    files.progress(1, 0.5)
    files.close()
    assert not files._thread.is_alive()
