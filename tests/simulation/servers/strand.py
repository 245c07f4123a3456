"""A thread that runs only while the scheduler waits for it: the real loop of a worker, one blocking call after the other.

It is a thread because that loop is written as one. At any moment either the scheduler runs or one strand does, so a schedule replays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """The process was killed: its loop ends where it stands."""


class Strand:
    """`run` in a thread of its own; `wait` gives way to the caller of `resume`."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.over = False
        self.error: BaseException | None = None
        self._killed = False
        self._run = run
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, name="strand", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        self._mine.acquire()
        try:
            if not self._killed:
                self._run()
        except Killed:
            pass
        except BaseException as error:  # whatever it is, the scheduler must hear of it
            self.error = error
        self.over = True
        self._theirs.release()

    def resume(self) -> None:
        """Let it run to where it waits next; raises what it ended with."""
        if self.over:
            return
        self._mine.release()
        self._theirs.acquire()
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Called in the strand: let the others go on."""
        self._theirs.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """Be gone."""
        self._killed = True
        self.resume()
        self._thread.join()
