"""What a program prints for the whole job, with connections that break."""

from __future__ import annotations

from elasticdl.worker.printedlines import PrintedLines


class Stream:
    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[str] = []

    def note(self, text: str) -> bool:
        if self.is_open:
            self.sent.append(text)
        return self.is_open


def test_lines_wait_for_a_connection_and_are_said_once_in_their_order() -> None:
    stream = Stream()
    lines = PrintedLines(stream.note)
    lines.add("epoch 0")
    stream.is_open = False
    lines.add("epoch 1")
    lines.add("epoch 2")
    lines.connected()  # an attempt
    assert stream.sent == ["epoch 0"]
    stream.is_open = True
    lines.connected()
    lines.connected()
    lines.add("epoch 3")
    assert stream.sent == ["epoch 0", "epoch 1", "epoch 2", "epoch 3"]


def test_a_line_that_finds_a_connection_comes_after_those_that_wait() -> None:
    stream = Stream()
    lines = PrintedLines(stream.note)
    stream.is_open = False
    for number in range(2000):
        lines.add(f"step {number}")
    stream.is_open = True
    lines.add("the end")
    assert stream.sent[-2:] == ["step 1999", "the end"]
    assert len(stream.sent) == 1000
