"""How far work is that a process does itself: lines where they stay, one that moves in a terminal."""

from __future__ import annotations

import io
import threading

import pytest

from elasticdl.job.progress import Progress

ERASED = "\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_now_and_then_with_the_time_left() -> None:
    seconds = [100.0]
    written = io.StringIO()
    with Progress("columns shuffled", 1200, written, lambda: seconds[0]) as progress:
        for at, done in [(120.0, 1), (122.0, 3), (130.0, 11), (134.9, 12), (220.0, 101), (221.0, 1200)]:
            seconds[0] = at
            progress(done)
    assert written.getvalue().splitlines() == [
        "    22.0 s  3 of 1,200 columns shuffled, 1 a second, 19:57 min left",
        "   120.0 s  101 of 1,200 columns shuffled, 1 a second, 18:19 min left",
    ], "what came before the first one is not in the rate"


@pytest.mark.parametrize("total", [0, 3])
def test_what_is_done_at_once_needs_no_line(total: int) -> None:
    written = io.StringIO()
    with Progress("rows", total, written, lambda: 7.0) as progress:
        for done in range(total):
            progress(done + 1)
    assert written.getvalue() == ""


def test_in_a_terminal_the_line_moves_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    seconds = [0.0]
    written = Terminal()
    with Progress("rows explained", 10, written, lambda: seconds[0]) as progress:
        progress(1)
        seconds[0] = 4.0
        progress(3)
    shown, _, after = written.getvalue().rpartition("3 of 10 rows explained, 14.0 s left")
    assert shown, "the last figures have been there"
    assert ERASED in after, "and are taken off"


def test_what_nobody_knows_the_number_of_has_a_rate() -> None:
    seconds = [0.0]
    written = io.StringIO()
    with Progress("rows read", None, written, lambda: seconds[0]) as progress:
        for at, done in [(1.0, 0), (9.0, 0), (40.0, 0), (60.0, 8_000_000)]:
            seconds[0] = at
            progress(done)
    assert written.getvalue().splitlines() == [
        "     9.0 s  0 rows read",
        "    40.0 s  0 rows read",
        "    60.0 s  8,000,000 rows read, 400,000 a second",
    ], "while a database sorts there is a sign of life, and this time is not in the rate"


def test_work_that_does_not_say_how_far_it_is_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("elasticdl.job.progress._PERIOD", 0.0)
    asked = threading.Event()

    def ask() -> int:
        asked.set()
        return 7

    written = Terminal()
    with Progress("rows read", None, written, ask=ask):
        assert asked.wait(60)
    assert "7 rows read" in written.getvalue(), "what was done at the end is shown"


@pytest.mark.parametrize("broken", [None, "its reader is gone"])
def test_work_is_done_whoever_looks(broken: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(broken)

    monkeypatch.setattr("sys.stderr", broken and Pipe())
    seconds = [0.0]
    with Progress("rows read", None, now=lambda: seconds[0]) as progress:
        for at in (10.0, 50.0):
            seconds[0] = at
            progress(int(at))
