"""How a program becomes a worker of a job: who it is, what ends it, and what the job hears of its end.

A job starts the user's program itself, with what it needs to know in the environment. From `join` on the program is a worker as any other:
SIGTERM asks it to leave after a step, an exception is reported to the master, and at the program's end the worker does what is left to do.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.local import exiting
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.cluster.local.place import PROCESS_ENVIRONMENT, Place, own_place
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobKind
from elasticdl.worker.events import Exit
from elasticdl.worker.loop.ending import Finishing, at_program_end
from elasticdl.worker.process import MemberProcess, leave_soon

_OTHER_WORK = {
    JobKind.TRAIN: "init() is for programs that train, and --work=tasks is given; start this program without it, or get its records with "
    "elasticdl.shards",
    JobKind.PROCESS: "elasticdl.shards is for a job of tasks; start this program with `elasticdl run --work=tasks -- python process.py`",
}
"""What is said to a program in a job of the other kind, by the kind that it needs."""


Session = TypeVar("Session", bound=Finishing)


def join(kind: JobKind, made: Callable[[MemberProcess, Callable[[Exit], None]], Session]) -> Session:
    """Make this process the worker that its job has started; called once, before the program starts processes or threads of its own.

    `kind`: of the jobs in which a program may take part so; `made`: makes its session. Raises BadSetting in a job of the other kind.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # data is loaded by processes that are forked
    forbid_core_dumps()
    watch_parent()
    exiting.announce()
    place: Place = podplace.own_pod() if podplace.POD_ENVIRONMENT in os.environ else own_place()
    _log_to_stderr(place.spec().log_level.value)
    # What this process starts is not the worker.
    process = MemberProcess(place, os.environ.pop(PROCESS_ENVIRONMENT))
    session = made(process, leave_soon)
    _on_term(process)
    at_program_end(session)
    if process.spec.kind is not kind:
        raise BadSetting(_OTHER_WORK[kind])
    return session


def _log_to_stderr(level: str) -> None:
    """Write what the worker logs to its log, and leave the logging of the program as it is."""
    log = logging.getLogger("elasticdl")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False


def _on_term(process: MemberProcess) -> None:
    """Let SIGTERM ask for a leave: heard by a thread, as the main one may be inside a long call, and not in processes that are forked."""
    heard, said = os.pipe()
    os.set_blocking(said, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)

    def listen() -> None:
        while (byte := os.read(heard, 1)) != bytes((signal.SIGTERM,)):
            if not byte:
                return
        process.drain(_end_by_term)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    threading.Thread(target=listen, name="sigterm", daemon=True).start()
    os.register_at_fork(after_in_child=forget)


def _end_by_term() -> None:
    """End this process by the signal that it was sent, from any thread: of a program an exit code that no master has told is a fault."""
    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL; Python lets only the main thread ask for it
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(
        128 + signal.SIGTERM
    )  # the first process of a container has no default action; read as the signal
