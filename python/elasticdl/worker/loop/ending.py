"""The end of a program with a training loop: what is left to do is done then, and it is an error to have left the loop before."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Protocol

LEFT_EARLY = (
    "the program ended after step {steps:,}, before its data did: every worker runs its loop to the end; to end training early, call "
    "job.stop(reason) and go on until the loop ends"
)

NO_RESULT = (
    "--output: the program has not said how its result is written; call job.result(write), where write(path) writes it, before "
    "training ends"
)


class Finishing(Protocol):
    """What is to be told of the end."""

    def finish(self) -> int | None:
        """Do what is left to do, at the end of a program; return the exit code of the process if it has to end at once."""

    def fail(self, error: BaseException) -> int | None:
        """Take what the program has raised; return the exit code of the process if it has to end at once."""


def at_program_end(session: Finishing) -> None:
    """Tell a session how this program ends; processes that are forked end without."""
    raised: list[BaseException] = []
    before, own = sys.excepthook, os.getpid()

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        raised.append(error)

    def at_exit() -> None:
        if os.getpid() != own:
            return
        try:
            code = session.fail(raised[0]) if raised else session.finish()
        except BaseException:
            # Python ends with 0 whatever is raised here: it is shown as what ends a program is, and the code says it.
            before(*sys.exc_info())
            code = 1
        if code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            # Threads of libraries must not hold up an end that others await.
            os._exit(code)

    sys.excepthook = on_exception
    atexit.register(at_exit)
