"""The `Local` strategy: master and one member in the caller's process.

The same machines, messages and files as in a job of many processes; only the launcher and the ring's neighbours are missing. The
member works on the caller's thread, so that breakpoints in the model file work, and the master on a thread beside it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

from elasticdl.cluster.cluster import ProcessEnded, ProcessName, ProcessStarted, Role
from elasticdl.cluster.local.place import JobPlace
from elasticdl.cluster.local.supervision import JobEnded, launcher_failed
from elasticdl.job.display import open_display
from elasticdl.job.launcher import STATUS_OF_CODE, Outcome, Watch, interrupts, sum_up
from elasticdl.job.worker import WorkerProcess
from elasticdl.spec.jobspec import JobSpec

_WORKER = ProcessName(Role.WORKER, 0, 1)
_END_SECONDS = 5.0
"""How long a master may take to end a job whose member has failed by an error that is not the user's."""


class OwnProcess:
    """A cluster of one process, the caller's; the only worker it can launch is the member on the caller's thread."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[ProcessStarted | ProcessEnded | None] = queue.SimpleQueue()
        self.drain: Future[None] = Future()

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        """Say that the first life runs already; a second one can't be had in this process."""
        if name == _WORKER:
            self._events.put(ProcessStarted(name, os.getpid()))

    def keep_spare(self) -> None:
        """Do nothing: no second worker can be had in this process."""

    def signal(self, name: ProcessName, number: int) -> None:
        """Drain the member on SIGTERM; nothing else is for this process to obey."""
        if number == signal.SIGTERM and not self.drain.done():
            self.drain.set_result(None)

    def ended(self, code: int) -> None:
        """Say that the member has ended."""
        self._events.put(ProcessEnded(_WORKER, code, None))

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Do nothing: nothing has run before this process."""

    def events(self, seconds: float) -> list[ProcessStarted | ProcessEnded]:
        """Wait at most `seconds` for events. Raises ConnectionError after `close`."""
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return []
        if event is None:
            raise ConnectionError("the job of this process has ended")
        return [event]

    def close(self) -> None:
        """End the waiting for events: this process lives on when the job has ended."""
        self._events.put(None)


class _Ending:
    """What a person's Ctrl-C acts on, in place of a launcher."""

    def __init__(self, place: JobPlace) -> None:
        self._place = place
        self._end: Future[JobEnded] = Future()

    def set(self, end: JobEnded) -> None:
        self._end.set_result(end)

    def wait(self, seconds: float | None = None) -> JobEnded | None:
        try:
            return self._end.result(seconds)
        except TimeoutError:
            return None

    def kill(self) -> None:
        """End this very process: it is the job."""
        self._place.close()
        os._exit(130)


def run_local(spec: JobSpec, place: JobPlace) -> Outcome:
    """Train with one member on this thread until the job has ended; the caller holds the place's lock."""
    from elasticdl.job.master import make_runner
    from elasticdl.job.page import MasterPage
    from elasticdl.master.core.filepages import FilePages
    from elasticdl.master.reporting.statusstore import FileStatusStore
    from elasticdl.worker.contract.framework import find_framework

    # Before anything else writes to the terminal, as the import needs its descriptor. What fails here fails again in the worker, which
    # reports it.
    with contextlib.suppress(Exception):
        find_framework(spec).import_library(place.log_path(str(_WORKER)))
    # There is no other process that could try once more.
    spec = replace(spec, relaunch_on_worker_failure=0)
    cluster, ending = OwnProcess(), _Ending(place)
    runner = make_runner(
        place,
        spec,
        cluster,
        FilePages(place.journal),
        FileStatusStore(place),
        lambda recording: MasterPage(place, spec, recording),
    )
    watch = Watch(place, lambda: open_display(place.submitted_at, spec.log_loss_steps))

    made: Future[WorkerProcess] = Future()

    def lead() -> None:
        try:
            code = runner.run()
        except Exception as error:
            traceback.print_exc()
            end = launcher_failed(error)
        else:
            end = JobEnded(code if code in STATUS_OF_CODE else 1, f"the master ended with code {code}")
        # A member that was not connected yet has not heard of the end, and would wait for it for ever.
        made.add_done_callback(lambda worker: worker.result().fail(end.reason))
        ending.set(end)

    master = threading.Thread(target=lead, name="master", daemon=True)
    end: JobEnded | None = None
    try:
        with interrupts(ending, place, watch):
            master.start()
            watch.start()
            worker = WorkerProcess(place, str(_WORKER), leaving=lambda _: None)
            made.set_result(worker)
            cluster.drain.add_done_callback(lambda _: worker.drain())
            cluster.ended(worker.run())
            end = ending.wait()
    except Exception as error:
        traceback.print_exc()
        cluster.ended(1)  # the master writes down what it knows
        end = (ending.wait(_END_SECONDS) if master.is_alive() else None) or launcher_failed(error)
    assert end is not None, "it is waited for without a limit"
    watch.close()
    cluster.close()
    first_step = watch.first_step
    place.close()
    return Outcome(end.code, sum_up(place, spec, end, first_step), place)
