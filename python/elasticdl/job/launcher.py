"""One local job from its launcher's side: start, watch, end, sum up. Also the launcher's own process with `--detach`.

The one who submitted the job becomes its launcher. The master is started before anything that only people need is imported, and
what watches it for them is imported by a thread of low priority, because on the way to the first step every core belongs to the workers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.local.children import Program
from elasticdl.cluster.local.place import JobPlace, open_place
from elasticdl.cluster.local.processes import Launcher
from elasticdl.cluster.local.supervision import JobEnded, launcher_failed
from elasticdl.control.protocol.status import INTERRUPT, EventKind
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE
from elasticdl.job.display import Display, PlainDisplay
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.machine import threads_per_worker
from elasticdl.spec.program import directory

STATUS_OF_CODE = {0: "finished", 1: "failed", 2: "failed", 130: "interrupted"}

_PYTHON = (sys.executable, "-P", "-m")
ARGV: Mapping[Role, Sequence[str]] = {
    Role.MASTER: (*_PYTHON, "elasticdl.job.master"),
    Role.WORKER: (*_PYTHON, "elasticdl.job.worker"),
    Role.PS: (*_PYTHON, "elasticdl.job.ps"),
}
"""Commands of a job's processes; `-P` keeps the current directory's files from shadowing modules."""
_SPARE = (*_PYTHON, "elasticdl.job.spare")

_RETRY_SECONDS = 0.1
_TURN_SECONDS = 0.5
_IMPORT_NICENESS = 5
_DRAW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        code: 0 done, 1 failed, 2 bad input, 130 interrupted.
        summary: what `summary.json` says.
        place: the job's place; its sockets and token are gone.
    """

    code: int
    summary: dict[str, Any]
    place: JobPlace


def supervise(
    place: JobPlace,
    spec: JobSpec,
    display: Callable[[], Display],
    argv: Mapping[Role, Sequence[str]] = ARGV,
) -> Outcome:
    """Be the launcher of a job until nothing of it runs any more.

    Ctrl-C (and SIGTERM) once asks the master to end the job at the next step boundary, twice kills it. Outside the main thread
    signals belong to somebody else and are left alone.

    Args:
        place: the job's place; the caller holds its lock, and it is closed here.
        spec: its settings.
        display: makes the display; called once the job has been started.
        argv: command of each role.
    """
    watch = Watch(place, display)
    # A framework's import takes longer than anything the master does before it asks for the same workers.
    first = [ProcessName(Role.WORKER, index, 1) for index in range(spec.num_workers.maximum)]
    first += [ProcessName(Role.PS, index, 1) for index in range(spec.num_ps_pods)]
    launcher = Launcher(place, argv, watch.notice, first, _program(spec), _SPARE if spec.keeps_spare else ())
    try:
        with interrupts(launcher, place, watch):
            launcher.start()
            watch.start()
            # In turns: a signal that comes just before a wait begins would be handled only after it.
            while (end := launcher.wait(_TURN_SECONDS)) is None:
                pass
    except Exception as error:
        traceback.print_exc()
        launcher.kill()
        launcher.wait(_DRAW_SECONDS)
        end = launcher_failed(error)
    except BaseException:
        launcher.kill()
        launcher.wait(_DRAW_SECONDS)
        raise
    finally:
        watch.close()
        first_step = watch.first_step
        place.close()
    if place.summary() is None and watch.failure:  # its disk is full
        end = replace(end, reason=watch.failure)
    return Outcome(end.code, sum_up(place, spec, end, first_step), place)


def _program(spec: JobSpec) -> Program | None:
    """Return the program of a custom training loop; None if the job has a model file."""
    if not spec.job_command:
        return None
    environment = {"OMP_NUM_THREADS": str(threads_per_worker(spec))}
    return Program(spec.job_command, str(directory(spec)), environment)


def sum_up(place: JobPlace, spec: JobSpec, end: JobEnded, first_step: float | None) -> dict[str, Any]:
    """Complete the master's summary, or write one if there is none, and copy it to where the job wants it.

    A master that was killed in its last moments, or whose launcher failed, may have written another end than the job's.

    Args:
        place: the job's place.
        spec: its settings.
        end: how the master ended.
        first_step: when the first step was seen, in seconds since the Unix epoch, or None.
    """
    own = {"status": STATUS_OF_CODE[end.code], "reason": end.reason, "exit_code": end.code}
    summary: dict[str, Any] = {"job": place.name, **own, **(place.summary() or {})}
    if summary["status"] != own["status"]:
        summary |= own
    summary.setdefault("seconds", round(time.time() - place.submitted_at, 3))
    if first_step is not None:
        summary.setdefault("seconds_to_first_step", round(first_step - place.submitted_at, 3))
    text = json.dumps(summary, indent=2) + "\n"
    wanted = [(Path(spec.summary), 0o666)] if spec.summary else []
    for path, mode in ((place.summary_path, PRIVATE), *wanted):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text, mode)
        except OSError as error:  # a full disk must not hide how the job ended
            print(f"the summary can't be written to {path}: {error.strerror}", file=sys.stderr)
    return summary


class Stoppable(Protocol):
    """What Ctrl-C acts on."""

    def wait(self, seconds: float | None = None) -> JobEnded | None:
        """Wait for the job's end, at most `seconds`."""

    def kill(self) -> None:
        """End everything at once."""


class Watch:
    """A thread that shows a job to people: what the master tells, again from where it was after a restart of the master."""

    def __init__(self, place: JobPlace, display: Callable[[], Display], since: float = 0.0) -> None:
        """Show what the master of `place` tells, on a display that is made once there is time for it.

        Args:
            place: the job's place.
            display: makes the display.
            since: events until then, in seconds since the Unix epoch, are known.

        Raises BadSetting once the job has ended.
        """
        self.since = since
        """The time of the last event that was shown."""
        self.first_step: float | None = None
        self.failure = ""
        """Why the job has failed, as the master told it."""
        self._place = place
        self._token = place.token()
        self._make = display
        self._display: Display | None = None
        self._early: list[str] = []
        self._is_closed = False
        self._has_ended = False  # the last event was shown
        self._lock = threading.Lock()  # the display, `_early`, `_is_closed` and `since`
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def notice(self, text: str) -> None:
        """Show a line, from any thread; kept until there is a display."""
        with self._lock:
            if self._display is None:
                self._early.append(text)
            else:
                with contextlib.suppress(OSError):  # a terminal that was closed
                    self._display.notice(text)

    def leave(self) -> None:
        """Show nothing more of a job that continues."""
        self._stopped.set()
        self._close()

    def close(self) -> None:
        """Show what is still on its way, then nothing more."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_DRAW_SECONDS)
            if not self._thread.is_alive() and not self._has_ended:
                self._catch_up()
        self._close()

    def _catch_up(self) -> None:
        """Show what masters have written down and nobody has heard: a short job may be over before this thread has a connection."""
        from elasticdl.master.reporting.statusstore import FileStatusStore

        if self._display is None:
            return
        for told in FileStatusStore(self._place).peek():
            if told.event.time > self.since:
                self._show(told.event)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._display is None and self._early:
                self._display = self._make()
                for text in self._early:
                    self._display.notice(text)
            if self._display is not None:
                self._display.close()

    def _run(self) -> None:
        # Only the imports give way to the workers: a thread that gives way while it has Python's lock would hold up the
        # launcher, which has deaths to report.
        quiet = threading.Thread(target=_import_quietly, name="imports", daemon=True)
        quiet.start()
        quiet.join()
        with self._lock:
            if self._is_closed:
                return
            self._display = self._make()
            for text in self._early:
                self._display.notice(text)
        from elasticdl.control.transport.client import JobClient
        from elasticdl.errors import BadSetting, MasterAway

        while True:
            last_time = self._stopped.is_set()
            try:
                with JobClient(self._place.control_address, self._token) as client:
                    for seen in client.watch(self.since):
                        if not self._show(seen):
                            return
            except MasterAway:
                pass
            except BadSetting as error:
                self.notice(f"the job can't be watched: {error}")
                return
            if last_time or self._stopped.wait(_RETRY_SECONDS):
                return

    def _show(self, seen: Any) -> bool:
        """Show a status or an event; return whether more is wanted."""
        from elasticdl.control.protocol.status import JobEvent

        if self.first_step is None and (
            seen.kind == EventKind.STEP if isinstance(seen, JobEvent) else seen.step > 0
        ):
            self.first_step = seen.time if isinstance(seen, JobEvent) else time.time()
        with self._lock:
            if self._is_closed:
                return False
            assert self._display is not None
            if isinstance(seen, JobEvent):
                if seen.kind == EventKind.FAILED:
                    self.failure = seen.text
                self._has_ended = self._has_ended or seen.kind in (EventKind.FAILED, EventKind.FINISHED)
                self.since = max(self.since, seen.time)
                self._display.event(seen)
            else:
                self._display.status(seen)
        return True


def _import_quietly() -> None:
    """Import what watching needs at the end of the queue for the processor."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IMPORT_NICENESS)
    for module in (
        "elasticdl.control.transport.client",
        "elasticdl.control.protocol.codec",
        "elasticdl.control.generated.control_pb2_grpc",
    ):
        importlib.import_module(module)
    if sys.stderr.isatty():
        importlib.import_module("rich.live")


@contextlib.contextmanager
def interrupts(launcher: Stoppable, place: JobPlace, watch: Watch) -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP (a closed terminal) into a request to the master, the second into the end of everything."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    token = place.token()
    # A handler may interrupt a holder of any lock, so it only puts; a thread that runs already does the rest.
    signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def obey() -> None:
        if signals.get() is None:
            return
        asking = threading.Thread(
            target=_ask_to_stop, args=(launcher, place, token, watch), name="stop", daemon=True
        )
        asking.start()
        if signals.get() is not None:
            launcher.kill()

    threading.Thread(target=obey, name="signals", daemon=True).start()
    before = {
        number: signal.signal(number, lambda received, frame: signals.put(received))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.put(None)


def _ask_to_stop(launcher: Stoppable, place: JobPlace, token: bytes, watch: Watch) -> None:
    watch.notice(
        "interrupted: the job ends at the next step and writes what there is; once more to stop at once"
    )
    from elasticdl.control.transport.client import JobClient
    from elasticdl.errors import BadSetting, MasterAway

    while launcher.wait(_RETRY_SECONDS) is None:
        try:
            with JobClient(place.control_address, token) as client:
                client.stop(INTERRUPT)
        except MasterAway:
            continue
        except BadSetting as error:
            watch.notice(f"the job can't be stopped in order: {error}")
        return


def main(argv: Sequence[str]) -> int:
    """Be the launcher of a detached job: `python -m elasticdl.job.launcher JOB_FOLDER`; its output is the launcher's log."""
    forbid_core_dumps()
    place = open_place(Path(argv[0]))
    spec = place.spec()
    outcome = supervise(
        place, spec, lambda: PlainDisplay(sys.stdout, place.submitted_at, spec.log_loss_steps)
    )
    return outcome.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
