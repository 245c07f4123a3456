"""What a worker says of storage that does not answer, with connections that break."""

from __future__ import annotations

from elasticdl.control.protocol.messages import MemberMessage, Note
from elasticdl.worker.storagenotes import StorageNotes


class Stream:
    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[str] = []

    def send(self, message: MemberMessage) -> bool:
        assert isinstance(message, Note)
        if self.is_open:
            self.sent.append(f"{message.kind}: {message.text}")
        return self.is_open


def test_who_waits_says_so_on_each_connection_and_that_it_is_over_once() -> None:
    stream = Stream()
    notes = StorageNotes(stream.send)
    notes.connected()
    assert stream.sent == []
    notes.tell("waiting for s3://b", True)
    stream.is_open = False
    notes.connected()  # an attempt
    stream.is_open = True
    notes.connected()
    assert stream.sent == ["waiting: waiting for s3://b"] * 2
    stream.is_open = False
    notes.tell("s3://b answers again", False)
    stream.is_open = True
    notes.connected()
    notes.connected()
    assert stream.sent[2:] == ["answered: s3://b answers again"]
