"""What people see of a job: lines, live figures, the summary."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.job.display import (
    LiveDisplay,
    PlainDisplay,
    clock,
    event_line,
    open_display,
    print_end,
    print_summary,
    print_traceback,
    status_line,
    summary_rows,
)

STARTED = 1000.0


def status(step: int, loss: float | None = 0.5, **changes: Any) -> JobStatus:
    values: dict[str, Any] = {
        "job_name": "digits",
        "state": "training",
        "reason": "",
        "view": 1,
        "step": step,
        "epoch": 0,
        "num_epochs": 3,
        "done": 0.25,
        "loss": loss,
        "records": 640,
        "records_per_second": 1234.5,
        "seconds_left": 61.0,
        "wanted_workers": 2,
        "workers": (
            WorkerStatus("worker-0-1", "training", 7, "a"),
            WorkerStatus("worker-1-1", "joining", None, None),
        ),
    }
    return JobStatus(**(values | changes))


def event(
    kind: EventKind, text: str, worker: str = "", seconds: float | None = None, at: float = 3.25
) -> JobEvent:
    return JobEvent(STARTED + at, kind, worker, 2, 5, text, seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1:00 min"), (125.6, "2:06 min"), (3723, "1:02:03 h")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("happened", "line"),
    [
        (event(EventKind.JOINED, "worker-2-1 has joined", "worker-2-1"), "worker-2-1 has joined"),
        (event(EventKind.LOST, "killed by SIGKILL", "worker-1-1"), "worker-1-1 killed by SIGKILL"),
        (event(EventKind.RECOVERED, "the group continues", seconds=0.1234), "the group continues (0.12 s)"),
        (
            event(EventKind.RECOVERED, "the group continues after 0.12 s", seconds=0.1234),
            "the group continues after 0.12 s",
        ),
        (event(EventKind.VIEW, "view 2: …"), None),
        (event(EventKind.STEP, "step 5"), None),
    ],
)
def test_one_line_per_event(happened: JobEvent, line: str | None) -> None:
    assert event_line(happened) == line


def test_status_line() -> None:
    assert (
        status_line(status(17))
        == "epoch 1/3, step 17, loss 0.5000, 1,234 records/s, 1 of 2 workers, 1:01 min left"
    )
    bare = status(0, None, records_per_second=None, seconds_left=None, num_epochs=0, records=0)
    assert status_line(bare) == "epoch 1, step 0, 1 of 2 workers"
    assert status_line(status(9, epoch=3)).startswith("epoch 3/3,")
    predicts = status_line(status(0, None))
    assert predicts.startswith("640 records, 1,234 records/s")
    assert "loss 0.0000" in status_line(status(1, -0.0))
    assert status_line(status(17, None)).startswith("epoch 1/3, step 17, 1,234 records/s")


def test_plain_lines_begin_with_the_first_loss_and_then_come_every_so_often() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, STARTED, 10)
    display.status(status(0, None, records=0))
    for step in (1, 2, 9, 10, 11, 25, 25, 31):
        display.status(status(step))
    display.event(event(EventKind.JOINED, "worker-2-1 has joined", "worker-2-1"))
    display.event(event(EventKind.VIEW, "view 3"))
    display.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("step ")[1].split(",")[0] for line in lines[:-1]] == ["1", "10", "25", "31"]
    assert lines[-1] == "     3.2 s  worker-2-1 has joined"


def test_a_program_that_says_no_loss_gets_the_lines_of_others_without_one() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, STARTED, 10)
    for step in (0, 1, 2, 10):
        display.status(status(step, None, records=64 * step))
    lines = stream.getvalue().splitlines()
    assert [line.split("3, ")[1] for line in lines] == [
        "step 1, 1,234 records/s, 1 of 2 workers, 1:01 min left",
        "step 10, 1,234 records/s, 1 of 2 workers, 1:01 min left",
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    live = LiveDisplay(console, STARTED)
    live.status(status(1, None))
    live.close()
    assert isinstance(console.file, io.StringIO)
    assert "epoch 1/3, step 1, 1,234 records/s" in console.file.getvalue()


def test_no_figures_come_after_the_end() -> None:
    for end in (
        lambda display: display.event(event(EventKind.FINISHED, "the job is finished")),
        lambda display: display.status(status(30, state="finished")),
    ):
        stream = io.StringIO()
        display = PlainDisplay(stream, STARTED, 10)
        display.status(status(1))
        end(display)
        display.status(status(40))
        assert stream.getvalue().count("epoch") == 1


def test_slow_steps_get_a_line_a_minute() -> None:
    stream, now = io.StringIO(), [STARTED]
    display = PlainDisplay(stream, STARTED, 100, lambda: now[0])
    for step in range(1, 21):
        now[0] = STARTED + 8 * step
        display.status(status(step))
    now[0] += 100
    display.status(status(17))  # nothing is new
    shown = [line.split("step ")[1].split(",")[0] for line in stream.getvalue().splitlines()]
    assert shown == ["1", "9", "17"]


def test_a_job_without_steps_gets_a_line_a_minute() -> None:
    stream, now = io.StringIO(), [STARTED]
    display = PlainDisplay(stream, STARTED, 100, lambda: now[0])
    for second in range(0, 150, 10):
        now[0] = STARTED + second
        display.status(status(0, None, state="predicting", records=100 * second, seconds_left=None))
    assert stream.getvalue().splitlines() == [
        "    10.0 s  1,000 records, 1,234 records/s, 1 of 2 workers",
        "    70.0 s  7,000 records, 1,234 records/s, 1 of 2 workers",
        "   130.0 s  13,000 records, 1,234 records/s, 1 of 2 workers",
    ]


def test_live_figures_and_lines_above_them() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    display = LiveDisplay(console, STARTED)
    display.status(status(0, None))
    display.status(status(1))
    display.status(status(2))
    display.event(event(EventKind.LOST, "worker-1-1 [was] killed", "worker-1-1"))
    display.close()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("epoch 1/3, step 1, loss 0.5000") >= 1
    assert "worker-1-1 [was] killed" in text  # brackets are no markup
    assert "worker-0-1 training" in text


def test_a_file_gets_plain_lines() -> None:
    assert isinstance(open_display(STARTED, 1, io.StringIO()), PlainDisplay)


SUMMARY = {
    "job": "digits-1",
    "status": "finished",
    "reason": "all data was trained",
    "epochs": 3,
    "steps": 1200,
    "records_trained": 76800,
    "records_per_second": 2048.4,
    "redone_steps": 0,
    "members": {"joined": 3, "drained": 0, "lost": 1},
    "recoveries": [
        {"cause": "killed", "member": "worker-1-1", "step": 9, "seconds": 0.2},
        {"cause": "killed", "member": "worker-0-1", "step": 12, "seconds": 0.1},
        {"cause": "killed", "member": "worker-0-2", "step": 15, "seconds": 0.3},
    ],
    "metrics": {"accuracy": 0.98},
    "outputs": ["/m.keras"],
    "loss": None,
    "seconds_to_first_step": 3.456,
}


def test_summary_rows() -> None:
    assert summary_rows(SUMMARY) == [
        ("job", "digits-1"),
        ("status", "finished"),
        ("reason", "all data was trained"),
        ("epochs", "3"),
        ("steps", "1,200"),
        ("records trained", "76,800"),
        ("records per second", "2,048"),
        ("committed steps redone", "0"),
        ("seconds to the first step", "3.46"),
        ("workers", "3 joined, 0 drained, 1 lost"),
        ("recoveries", "3, median 0.20 s, longest 0.30 s"),
        ("accuracy", "0.9800"),
        ("output", "/m.keras"),
    ]


def test_the_summary_of_a_job_with_servers() -> None:
    rows = dict(
        summary_rows(
            {
                "records_trained": 300,
                "idle_steps": 1,
                "members": {"joined": 2, "drained": 0, "lost": 0},
                "servers": {"joined": 3, "drained": 0, "lost": 1, "at_the_end": 2},
            }
        )
    )
    assert rows["workers"] == "2 joined, 0 drained, 0 lost"
    assert rows["servers"] == "3 joined, 0 drained, 1 lost, 2 at the end"
    assert rows["records consumed"] == "300"


def test_the_summary_says_how_many_checkpoints_are_missing() -> None:
    failed = {"checkpoints_given_up": 3}
    assert ("last checkpoint", "none, 3 could not be written") in summary_rows(failed)
    kept = {"checkpoint": "/c/checkpoint-1"}
    assert ("last checkpoint", "/c/checkpoint-1") in summary_rows({**kept, "checkpoints_given_up": 0})
    assert ("last checkpoint", "/c/checkpoint-1, 3 could not be written") in summary_rows({**kept, **failed})


def test_a_poor_summary_is_shown_too() -> None:
    assert summary_rows({"status": "failed"}) == [("status", "failed")]
    strange = {
        "status": "failed",
        "members": 3,
        "recoveries": None,
        "metrics": [],
        "outputs": "x",
        "steps": True,
    }
    assert summary_rows(strange) == [("status", "failed")]


def test_a_users_traceback() -> None:
    stream = io.StringIO()
    print_traceback({"traceback": "Traceback:\n  ValueError: x\n"}, stream)
    print_traceback({"traceback": ""}, stream)
    print_traceback({}, stream)
    assert stream.getvalue() == "Traceback:\n  ValueError: x\n"


def test_what_the_reason_says_is_not_said_twice() -> None:
    stream = io.StringIO()
    print_traceback({"reason": "worker-0-1: m.py: no", "traceback": "m.py: no\n"}, stream)
    assert stream.getvalue() == ""
    print_traceback({"reason": "worker-0-1: m.py: no", "traceback": "m.py: no\n  m.py, line 3\n"}, stream)
    assert stream.getvalue() == "  m.py, line 3\n"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_terminal_shows_the_reason_of_a_failure_once(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """The command ends with it."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", screen)
    print_end({"status": status, "reason": "why it was"})
    assert ("why it was" in screen.getvalue()) == (status == "interrupted")


def test_a_full_disk_or_a_closed_output_changes_nothing_of_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        print_summary({"status": "finished"}, full)
        assert "the summary can't be printed: No space left on device" in capsys.readouterr().err
        monkeypatch.setattr("sys.stderr", open("/dev/full", "w", encoding="utf-8", buffering=1))  # noqa: SIM115
        print_summary({"status": "finished"}, full)  # goes to nowhere since
    monkeypatch.setattr("sys.stdout", None)
    print_end({"status": "finished"})


def test_a_table_for_a_file() -> None:
    stream = io.StringIO()
    print_summary({"status": "failed", "reason": "ValueError: x", "traceback": "Traceback:"}, stream)
    assert stream.getvalue() == "status  failed\nreason  ValueError: x\n"


def test_a_signal_that_interrupts_no_read_ends_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just before the answer is waited for interrupts nothing; here it does not, because another thread takes it."""
    keys, inside = pty.openpty()
    ended, typed = threading.Event(), threading.Event()

    def press() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        assert os.read(keys, 100).startswith(b"stop?")
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(10):
            typed.set()
            os.write(keys, b"nobody noticed it\n")

    with os.fdopen(inside, "r+b", buffering=0) as terminal, contextlib.ExitStack() as stack:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(terminal))
        display = PlainDisplay(io.TextIOWrapper(terminal, write_through=True), 0.0, 1)
        stack.callback(os.close, keys)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        key = threading.Thread(target=press)
        key.start()
        with pytest.raises(KeyboardInterrupt):
            display.ask("stop?")
        ended.set()
        key.join()
    assert not typed.is_set()
