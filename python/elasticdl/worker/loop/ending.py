"""The end of a program with a training loop: what is left to do is done then, and it is an error to have left the loop before."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any, NoReturn, Protocol

from elasticdl.worker.loop.held import watch_end

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
    endings = _watch_exits()

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        raised.append(error)

    def at_exit() -> None:
        if os.getpid() != own:
            return
        failed = [*raised, *(one.told() for one in endings if one.is_failure)]
        try:
            code = session.fail(failed[0]) if failed else session.finish()
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
    watch_end()


class _Ending(SystemExit):
    """What `sys.exit` raises in a program: it knows whether Python ends by it.

    Python itself asks for the code then, from no frame of the program; who catches it asks from one.
    """

    ends = False

    @property
    def code(self) -> Any:  # type: ignore[override]  # read-only: Python only reads it
        """Return the exit code, or what is shown."""
        try:
            sys._getframe(1)
        except ValueError:
            self.ends = True
        return self.args[0] if self.args else None

    @property
    def is_failure(self) -> bool:
        """Tell whether the process ends by this, with another exit code than 0."""
        return self.ends and self.code not in (None, 0)

    def told(self) -> SystemExit:
        """Return what the job hears of it."""
        text = f"the program ended by sys.exit({self.code!r})"
        return SystemExit(text).with_traceback(self.__traceback__)


def _watch_exits() -> list[_Ending]:
    """Let `sys.exit` leave what it raises in the list that is returned: at the end Python tells nobody the exit code."""
    endings: list[_Ending] = []

    def leave(status: object = None, /) -> NoReturn:
        frame = sys._getframe(1)
        ending = _Ending() if status is None else _Ending(status)
        endings.append(ending)
        # Python itself notes no way on what nobody catches.
        raise ending.with_traceback(TracebackType(None, frame, frame.f_lasti, frame.f_lineno))

    sys.exit = leave
    return endings
