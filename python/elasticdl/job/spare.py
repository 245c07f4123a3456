"""The entry point of a spare process: a worker of a local job that has imported its framework before anybody needs it.

It has no name and no part in the job: it reads no key, opens no connection, and does not look at the model file, so that what the user's
program draws, writes or opens happens once, in the worker that it becomes. Its launcher gives it a name on its standard input, also
while it still imports. From then on it is that worker.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from elasticdl.cluster.cluster import RELEASED
from elasticdl.cluster.local.place import Place
from elasticdl.files import reading
from elasticdl.job.worker import WorkerProcess, begin, obey_term, run
from elasticdl.worker.process import leave_soon

_log = logging.getLogger(__name__)
_PREFERRED, _INHERITED = "1000", "0"
_OOM_SCORE = "/proc/self/oom_score_adj"
_AUTOGROUP = "/proc/self/autogroup"
"""Linux shares the processors between sessions before it looks at the processes in them (sched(7), "The autogroup feature")."""
_WAITING, _WORKING = 10, 0
"""Niceness of this session as a spare, a tenth of what others get of a processor that all want; and as a worker."""
_CHANGES, _CHANGE_SECONDS = 20, 0.1
"""Linux takes one change of a session's share in so many seconds, from all users together."""
_MODULES = (
    "elasticdl.control.generated.control_pb2_grpc",
    "elasticdl.control.protocol.codec",
    "elasticdl.data.prefetch",
    "elasticdl.data.readers.recordfiles",
    "elasticdl.worker.allreduce.runner",
    "elasticdl.worker.auditlog",
    "elasticdl.worker.evaluating",
    "elasticdl.worker.raised",
    "grpc.experimental",
)
"""What most workers import on their way, and importing this module does not; a worker with parameter servers imports a little more."""


@dataclass(frozen=True, slots=True)
class _Named:
    """The worker that this process is from now on, and what only that one has in its environment."""

    process: WorkerProcess
    environment: dict[str, str]


def main() -> None:
    """Import the framework, wait for a name, and be that worker; end if there is no launcher any more."""
    place = begin()
    named: Future[_Named] = Future()
    obey_term(lambda: named.result().process.drain() if named.done() else os._exit(RELEASED))
    before = _prefer(_PREFERRED)
    _give_way(_WAITING)
    threading.Thread(target=_await_name, args=(place, named), name="name", daemon=True).start()
    began = time.process_time()
    with contextlib.suppress(Exception):  # it fails again in the worker, which reports it
        # Here, because NumPy starts threads, and which of them gets a SIGTERM is the system's choice.
        from elasticdl.worker.contract.framework import find_framework

        find_framework(place.spec()).import_library()
        for module in _MODULES:
            importlib.import_module(module)
    _log.info("spare: has imported the framework (%.1f s of processor time)", time.process_time() - began)
    worker = named.result()
    _prefer(before)
    os.environ.update(worker.environment)  # not earlier: what is imported may read it at the same time
    run(worker.process)


def _await_name(place: Place, named: Future[_Named]) -> None:
    """Wait for a name; connect to the master under it at once, as a worker does while it imports."""
    line = sys.stdin.buffer.readline()
    if not line:  # the job has ended
        os._exit(RELEASED)
    _give_way(_WORKING)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        told: dict[str, Any] = reading.fields(json.loads(line))
        named.set_result(_Named(WorkerProcess(place, told["name"], leave_soon), dict(told["environment"])))
    except Exception as error:  # the main thread raises it
        named.set_exception(error)


def _prefer(score: str) -> str:
    """Set how much Linux prefers this process when it needs memory and has to kill one; return how much it did."""
    try:
        with open(_OOM_SCORE, "r+", encoding="ascii") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(score)
        return before
    except OSError:
        return _INHERITED


def _give_way(niceness: int) -> None:
    """Let the imports take what others leave of the processors, or no longer; where Linux does not group sessions they take their share."""
    if os.getsid(0) != os.getpid():
        return  # whose session that is has not asked for it
    with contextlib.suppress(OSError):
        file = os.open(_AUTOGROUP, os.O_WRONLY)
        try:
            for _ in range(_CHANGES):
                with contextlib.suppress(BlockingIOError):
                    os.write(file, str(niceness).encode())
                    return
                time.sleep(_CHANGE_SECONDS)  # nothing tells when the next change is taken
        finally:
            os.close(file)


if __name__ == "__main__":
    main()
