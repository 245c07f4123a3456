"""What both kinds of workers do when they write the result, and with notes for people."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from elasticdl.control.protocol.messages import MemberMessage, Note, ProgramFailed
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.errors import Unwritable
from elasticdl.worker.notes import with_log_of_notes
from elasticdl.worker.result import written_result

OUTPUT = Path("/results/model.keras")


def test_a_result_is_written_beside_its_place_and_not_before_anything_was_trained() -> None:
    with written_result(OUTPUT, 7, 2) as path:
        assert path == "/results/.model.step-7-view-2.keras"
    for output, step in ((None, 7), (OUTPUT, 0)):
        with written_result(output, step, 2) as path:
            assert path == ""


def test_a_disk_that_does_not_take_the_result_is_named() -> None:
    with (
        pytest.raises(Unwritable, match=r"can't be written to /results/model\.keras: no space left"),
        written_result(OUTPUT, 7, 2),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_notes_are_logged_and_other_messages_are_only_sent(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[MemberMessage] = []
    send = with_log_of_notes(lambda message: bool(sent.append(message)) or True)
    caplog.set_level("INFO")
    note, failed = (
        Note(EventKind.IDLE_STEP, ViewId(0), 3, "nothing"),
        ProgramFailed("program", "", "", "why", 3),
    )
    assert send(note)
    assert send(failed)
    assert sent == [note, failed]
    assert [record.message for record in caplog.records] == ["idle-step: nothing"]
