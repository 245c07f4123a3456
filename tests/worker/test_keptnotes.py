"""What a worker says that must not be missing, with connections that break."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticdl.control.protocol.messages import MemberMessage, Note
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.control.transport.memberstream import StreamOpened
from elasticdl.worker import process
from elasticdl.worker.keptnotes import KeptNotes


class Stream:
    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[str] = []

    def send(self, message: MemberMessage) -> bool:
        if self.is_open:
            assert isinstance(message, Note)
            self.sent.append(message.text)
        return self.is_open


def note(text: str) -> Note:
    return Note(EventKind.NOTE, ViewId(0), 0, text)


def test_notes_wait_for_a_connection_and_are_said_once_in_their_order() -> None:
    stream = Stream()
    notes = KeptNotes(stream.send)
    notes.add(note("epoch 0"))
    stream.is_open = False
    notes.add(note("epoch 1"))
    notes.add(note("epoch 2"))
    notes.connected()  # an attempt
    assert stream.sent == ["epoch 0"]
    stream.is_open = True
    notes.connected()
    notes.connected()
    notes.add(note("epoch 3"))
    assert stream.sent == ["epoch 0", "epoch 1", "epoch 2", "epoch 3"]


def test_a_note_that_finds_a_connection_comes_after_those_that_wait() -> None:
    stream = Stream()
    notes = KeptNotes(stream.send)
    stream.is_open = False
    for number in range(2000):
        notes.add(note(f"step {number}"))
    stream.is_open = True
    notes.add(note("the end"))
    assert stream.sent[-2:] == ["step 1999", "the end"]
    assert len(stream.sent) == 1000


@pytest.mark.parametrize("kind", [EventKind.BAD_RECORD, EventKind.IDLE_STEP])
def test_what_the_summary_counts_is_kept_and_other_notes_are_dropped(
    kind: EventKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.is_open = False
    monkeypatch.setattr(process, "MemberStream", lambda *_: stream)
    monkeypatch.setattr(process, "Heart", lambda *_: None)
    monkeypatch.setattr(process, "PatientHeart", lambda *_: None)
    place = SimpleNamespace(
        spec=lambda: SimpleNamespace(heartbeat_seconds=1.0),
        heart_address="",
        control_address="",
        key=lambda purpose: b"",
        identity=None,
    )
    worker = process.MemberProcess(cast(Any, place), "worker-0-1")
    assert worker.send(Note(kind, ViewId(0), 3, "counted"))
    assert not worker.send(note("of the moment"))
    stream.is_open = True
    worker._on_stream(StreamOpened())
    assert stream.sent == ["counted"]
