"""What a person sees of a running job: lines for what happens, live figures where there is a terminal, and the summary.

Turning values into text is pure and the same for both displays; they differ only in how they put it on the screen. Nothing here
asks the master: the process that watches the job gives what it sees.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO

from elasticdl.control.protocol.status import WORKING, EventKind, JobEvent, JobStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar

_SHOWN = frozenset(
    {
        EventKind.JOINED,
        EventKind.LOST,
        EventKind.DRAINED,
        EventKind.EVICTED,
        EventKind.RECOVERED,
        EventKind.HEALED,
        EventKind.SCALED,
        EventKind.ROLLED_BACK,
        EventKind.STOPPING,
        EventKind.EXPORTED,
        EventKind.FINISHED,
        EventKind.MASTER,
        EventKind.NOTE,
        EventKind.WAITING,
        EventKind.ANSWERED,
        EventKind.UNSAVED,
        EventKind.DIVERGED,
        EventKind.BAD_RECORD,
        EventKind.IDLE_STEP,
        EventKind.RESUMED,
        EventKind.EVALUATED,
    }
)
"""Kinds of events that are worth a line; the others are steps of these, or said at the end, and all are in the log."""

_LAST = frozenset({EventKind.FINISHED, EventKind.FAILED})
"""Kinds of events after which nobody wants to know any more how far the job is."""

_LONGEST_SILENCE = 60.0
"""Seconds between two lines about a job that makes slow steps; with none for longer people think that it hangs."""


def clock(seconds: float) -> str:
    """Return a duration for people: `4.2 s`, `3:05 min`, `2:03:05 h`; `? s` for what is none."""
    if not math.isfinite(seconds):
        return "? s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def event_line(event: JobEvent) -> str | None:
    """Return the line for an event, or None if it is not worth one."""
    if event.kind not in _SHOWN:
        return None
    text = event.text if not event.worker or event.worker in event.text else f"{event.worker} {event.text}"
    took = (
        f" ({event.seconds:.2f} s)" if event.seconds is not None and not _states_duration(event.text) else ""
    )
    return text + took


def status_line(status: JobStatus) -> str:
    """Return one line about how the job stands."""
    # A job that evaluates or predicts has records, and no steps.
    makes_steps = status.step > 0 or not status.records
    parts = [epoch_text(status), f"step {status.step}"] if makes_steps else [f"{status.records:,} records"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:z.4f}")
    if status.records_per_second is not None:
        digits = 0 if status.records_per_second >= 10 else 1
        parts.append(f"{status.records_per_second:,.{digits}f} records/s")
    parts.append(workers_text(status))
    if status.seconds_left is not None:
        parts.append(f"{clock(status.seconds_left)} left")
    return ", ".join(parts)


def epoch_text(status: JobStatus) -> str:
    """Return `epoch 2/3`; the epoch after the last is the last."""
    if status.num_epochs == 0:
        return f"epoch {status.epoch + 1}"
    return f"epoch {min(status.epoch + 1, status.num_epochs)}/{status.num_epochs}"


def workers_text(status: JobStatus) -> str:
    """Return how many workers train, and how many should."""
    training = sum(worker.state in WORKING for worker in status.workers)
    text = f"{training} of {status.wanted_workers} workers"
    if not status.wanted_servers:
        return text
    serving = sum(worker.state == "serving" for worker in status.workers)
    return f"{text}, {serving} of {status.wanted_servers} servers"


def status_lines(status: JobStatus) -> list[str]:
    """Return how the job stands, in full."""
    lines = [f"{status.job_name}: {status.state}" + (f" ({status.reason})" if status.reason else "")]
    lines.append(status_line(status))
    if status.done is not None:
        lines.append(f"{status.done:.0%} done")
    for worker in status.workers:
        pid = f"  pid {worker.pid}" if worker.pid is not None else ""
        why = f"  ({worker.waits_for})" if worker.waits_for else ""
        lines.append(f"  {worker.name:<14} {worker.state}{pid}{why}")
    return lines


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the summary as (label, text): the same values as in `summary.json`, without those that say nothing."""
    rows = [("job", str(summary.get("job", ""))), ("status", str(summary.get("status", "unknown")))]
    rows.append(("reason", str(summary.get("reason", ""))))
    for name, label, form in (
        ("epochs", "epochs", "{:,}"),
        ("steps", "steps", "{:,}"),
        ("loss", "loss of a last minibatch" if "servers" in summary else "loss of the last step", "{:z.4f}"),
        ("records_trained", "records consumed" if _has_left_out(summary) else "records trained", "{:,}"),
        ("records_evaluated", "records evaluated", "{:,}"),
        ("records_predicted", "records predicted", "{:,}"),
        ("records_processed", "records processed", "{:,}"),
        ("tasks", "tasks", "{:,}"),
        ("records_per_second", "records per second", "{:,.0f}"),
        ("roll_backs", "times rolled back", "{:,}"),
        ("redone_steps", "committed steps redone", "{:,}"),
        ("view_changes", "changes of the group", "{:,}"),
        ("bad_records", "corrupt records skipped, each epoch", "{:,}"),
        ("idle_steps", "steps that changed nothing", "{:,}"),
        ("threads_per_worker", "threads per worker", "{:,}"),
        ("seconds_to_first_step", "seconds to the first step", "{:.2f}"),
        ("seconds", "seconds in all", "{:.1f}"),
    ):
        value = summary.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            rows.append((label, form.format(value)))
    if refused := summary.get("refused_connections"):
        rows.append(("connections refused", f"{refused:,}"))
    rows += _members_rows("workers", summary.get("members"))
    rows += _members_rows("servers", summary.get("servers"))
    recoveries = summary.get("recoveries")
    if isinstance(recoveries, Sequence) and recoveries:
        seconds = sorted(float(recovery.get("seconds") or 0.0) for recovery in recoveries)
        rows.append(
            (
                "recoveries",
                f"{len(seconds)}, median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s",
            )
        )
    metrics = summary.get("metrics")
    if isinstance(metrics, Mapping):
        rows += [(str(name), f"{value:.4f}") for name, value in metrics.items()]
    outputs = summary.get("outputs")
    if isinstance(outputs, Sequence) and not isinstance(outputs, str):
        rows += [("output", str(path)) for path in outputs]
    rows += [
        ("resumed from", str(summary.get("resumed_from", ""))),
        ("weights of", str(summary.get("weights_of", ""))),
        ("last checkpoint", _checkpoint_text(summary)),
    ]
    return [(label, text) for label, text in rows if text]


def live(console: Console, render: Callable[[], RenderableType]) -> Live:
    """Return the last rows of a terminal, which change while they are started, and go when they are stopped."""
    from rich.live import Live

    return Live(console=console, get_renderable=render, refresh_per_second=4, transient=True)


def bar(done: float) -> ProgressBar:
    """Return the bar of a terminal for the part of some work that is done, from 0 to 1."""
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=1.0, completed=done, width=60)


class Display(Protocol):
    """Where a job is shown."""

    def notice(self, text: str) -> None:
        """Show one line."""

    def event(self, event: JobEvent) -> None:
        """Show what happened, if it is worth a line."""

    def status(self, status: JobStatus) -> None:
        """Show how the job stands."""

    def ask(self, question: str) -> str:
        """Return the line that the person types; nothing else is shown meanwhile."""

    def close(self) -> None:
        """Stop showing live figures."""


class PlainDisplay:
    """Lines only, for files, pipes and notebooks."""

    def __init__(
        self, stream: TextIO, started: float, every: int, now: Callable[[], float] = time.time
    ) -> None:
        """Write to `stream`.

        Args:
            stream: where lines go.
            started: when the job was submitted; each line begins with the seconds since then.
            every: steps between two lines about the training.
            now: the time in seconds since 1970.
        """
        self._stream = stream
        self._started = started
        self._every = every
        self._now = now
        self._shown = 0
        self._shown_at = 0.0
        self._is_over = False

    def notice(self, text: str) -> None:
        """Write one line."""
        self._write(self._now(), text)

    def event(self, event: JobEvent) -> None:
        """Write an event's line."""
        self._is_over = self._is_over or event.kind in _LAST
        line = event_line(event)
        if line is not None:
            self._write(event.time, line)

    def status(self, status: JobStatus) -> None:
        """Write the first figures at once, then one line every so many steps, but with slow steps, or none, one a minute."""
        self._is_over = self._is_over or status.state in _LAST
        done = status.step or status.records  # a job that evaluates or predicts has no steps
        if self._is_over or done in (0, self._shown):
            return
        due = status.step // self._every != self._shown // self._every and status.step > 0
        if self._shown and not due and self._now() - self._shown_at < _LONGEST_SILENCE:
            return
        self._shown, self._shown_at = done, self._now()
        self.notice(status_line(status))

    def ask(self, question: str) -> str:
        """Write the question, and read a line."""
        return _ask(question, self._stream)

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _write(self, when: float, text: str) -> None:
        print(f"{max(0.0, when - self._started):8.1f} s  {text}", file=self._stream, flush=True)


class LiveDisplay:
    """Lines above, and live figures in the last rows of a terminal."""

    def __init__(self, console: Console, started: float) -> None:
        """Show on `console`; `started`: when the job was submitted."""
        self._console = console
        self._started = started
        self._status: JobStatus | None = None
        self._first = True
        self._is_over = False
        self._live = live(console, self._render)
        self._live.start()

    def notice(self, text: str) -> None:
        """Print one line above the figures."""
        self._print(time.time(), text)

    def event(self, event: JobEvent) -> None:
        """Print an event's line above the figures."""
        self._is_over = self._is_over or event.kind in _LAST
        line = event_line(event)
        if line is not None:
            self._print(event.time, line)

    def status(self, status: JobStatus) -> None:
        """Show new figures; those of the first step are also a line of its own."""
        self._status = status
        self._is_over = self._is_over or status.state in _LAST
        if self._first and not self._is_over and status.step >= 1:
            self._first = False
            self.notice(status_line(status))

    def ask(self, question: str) -> str:
        """Take the figures off the screen until the line is there."""
        self._live.stop()
        try:
            return _ask(question, self._console.file)
        finally:
            self._live.start()

    def close(self) -> None:
        """Take the figures off the screen."""
        self._live.stop()

    def _print(self, when: float, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble((f"{max(0.0, when - self._started):8.1f} s  ", "dim"), text))

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        status = self._status
        if status is None:
            return Text("starting", style="dim")
        workers = Text("  ".join(f"{worker.name} {worker.state}" for worker in status.workers), style="dim")
        rows: list[RenderableType] = [
            Text(f"{status.job_name}  {status.state}  {status_line(status)}"),
            workers,
        ]
        if status.done is not None:
            rows.insert(1, bar(status.done))
        return Group(*rows)


def _ask(question: str, stream: IO[str]) -> str:
    with _woken_by_signals() as woken:
        print(f"{question} ", end="", file=stream, flush=True)
        while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
            os.read(woken, 1)
    return sys.stdin.readline().strip()


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[int]:
    """Yield what can be read after a signal: one that comes just before a wait begins would be noticed only after it."""
    woken, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(signalled)


def in_notebook() -> bool:
    """Tell whether this program runs in a notebook, which shows HTML. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # That of a terminal has none.
    return getattr(shell, "kernel", None) is not None


def open_display(started: float, every: int, stream: TextIO | None = None) -> Display:
    """Return the display that suits the stream; if none is given, a notebook's output, else standard error."""
    if stream is None and in_notebook():
        from elasticdl.job.notebook import NotebookDisplay
        from elasticdl.page.recording import Recording

        return NotebookDisplay(Recording(started), started)
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        return PlainDisplay(stream, started, every)
    from rich.console import Console

    return LiveDisplay(Console(file=stream, highlight=False), started)


def print_traceback(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print the user's traceback, if that is how the job ended, without what the job's reason says already."""
    reason, lines = (
        str(summary.get("reason") or ""),
        str(summary.get("traceback") or "").rstrip().splitlines(),
    )
    while lines and lines[0].strip() in reason:
        del lines[0]
    if lines:
        print(*lines, sep="\n", file=sys.stderr if stream is None else stream, flush=True)


def print_log_end(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print the end of the log of the process that failed, without what `print_traceback` prints."""
    lines, traceback = summary.get("log"), str(summary.get("traceback") or "")
    known = {line.strip() for line in traceback.splitlines()}
    new = [line for line in lines if line.strip() not in known] if isinstance(lines, list) else []
    if new:
        print(
            f"the end of the log of {summary.get('log_of')}:",
            *(f"  {line}" for line in new),
            sep="\n",
            file=sys.stderr if stream is None else stream,
            flush=True,
        )


def print_end(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print how a job ended that was waited for; in a terminal without the reason of a failure, with which the command ends."""
    print_traceback(summary)
    told_at_last = sys.stdout is not None and sys.stdout.isatty() and summary.get("status") == "failed"
    print_summary({**summary, "reason": ""} if told_at_last else summary, stream)


def print_summary(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print the summary as a table. Its reader may be gone, or its disk full; how the job ended is not changed by that."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return  # closed by who started the command
    try:
        _print_summary(summary, stream)
    except OSError as error:
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):  # it may be the same disk
                print(f"the summary can't be printed: {error.strerror}", file=sys.stderr)


def _print_summary(summary: Mapping[str, Any], stream: TextIO) -> None:
    rows = summary_rows(summary)
    width = max(len(label) for label, _ in rows)
    if not stream.isatty():
        for label, text in rows:
            print(f"{label:<{width}}  {text}", file=stream)
        stream.flush()
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    for label, text in rows:
        table.add_row(label, text, style="bold" if label == "status" else "")
    Console(file=stream, highlight=False, markup=False).print(table)


def _members_rows(label: str, members: object) -> list[tuple[str, str]]:
    if not isinstance(members, Mapping):
        return []
    counts = {
        name: len(value) if isinstance(value, (list, tuple)) else value for name, value in members.items()
    }
    return [(label, ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))]


def _checkpoint_text(summary: Mapping[str, Any]) -> str:
    parts = [str(summary.get("checkpoint", ""))]
    if given_up := summary.get("checkpoints_given_up"):
        parts = [parts[0] or "none", f"{given_up:,} could not be written"]
    return ", ".join(parts)


def _has_left_out(summary: Mapping[str, Any]) -> bool:
    """Tell whether there are records that were dealt with and have changed nothing."""
    return bool(summary.get("bad_records") or summary.get("idle_steps"))


def _states_duration(text: str) -> bool:
    return text.rstrip(".").endswith(" s") or " s)" in text or " s " in text
