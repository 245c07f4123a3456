"""Patience with storage that does not answer: whether to try again, and when.

Pure but for `Patience.call`, which waits and tries, and `Silence`, which remembers. What is no storage's silence, such as a file that is
not there, is raised at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from elasticdl.errors import StorageAway

_FIRST, _LONGEST = 0.5, 15.0
"""Seconds between two tries: twice as long each time."""
_SIGN = 1.0
"""Seconds between two signs of life meanwhile."""
_LONG = 30.0
"""Seconds of one request from which on people hear that it is waited for."""
_MOST_SILENCES = 10
"""Of one request: what is broken off so often, such as a load that takes longer than a proxy keeps connections, never ends."""
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
)
_UNSET = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
"""Errors of clients of Amazon's and Google's storage that find no keys, by their names: the clients may not be installed."""
_PASSING_STATUS = (408, 429)
"""Answers of HTTP below 500 that another try may change."""

_Answer = TypeVar("_Answer")


def may_pass(error: Exception) -> bool:
    """Tell whether another try may succeed."""
    # Of HTTP, fsspec says that whatever it can't have does not exist; what happened stands behind it.
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, _LASTING) or type(error).__name__ in _UNSET:
        return False
    status = _status_of(error) or _status_of(error.__cause__)
    return not (400 <= status < 500 and status not in _PASSING_STATUS)


def _status_of(error: BaseException | None) -> int:
    """Return the status of an answer of HTTP, as aiohttp and botocore keep it; 0 if there was none."""
    status = getattr(error, "status", None)
    response = getattr(error, "response", None)
    if status is None and isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else 0


def pause(waited: float, tries: int, patience: float) -> float | None:
    """Return the seconds to wait before the next try, after so many seconds and tries in vain; None: give up."""
    if waited >= patience:
        return None
    return min(_FIRST * 2.0 ** min(tries - 1, 16), _LONGEST, patience - waited)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process waits for storage, and whom it tells.

    Attributes:
        seconds: how long.
        note: hears once that it waits, with True, and once that it need not any more, with False.
        alive: hears after each try in vain, and each second until the next one, that this process is not stuck.
        clock: says the time in seconds.
        wait: waits for so many.
    """

    seconds: float = 300.0
    note: Callable[[str, bool], object] = field(default=lambda text, waits: None)
    alive: Callable[[], object] = field(default=lambda: None)
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep

    def call(
        self,
        what: str,
        ask: Callable[[], _Answer],
        passes: Callable[[Exception], bool] = may_pass,
        silence: Silence | None = None,
    ) -> _Answer:
        """Ask storage until it answers. Raises StorageAway when patience is at its end, and at once what no other try would change.

        `passes` tells whether another try may succeed after an error. `silence` is of a try that takes long and has answers on its way.
        """
        silence = silence or Silence(self, what)
        while True:
            try:
                answer = ask()
            except (
                Exception
            ) as error:  # each file system of fsspec has its own; what no wait mends is raised again
                if not passes(error):
                    raise
                self._pause(silence.failed(error))
            else:
                silence.answered()
                return answer

    def _pause(self, seconds: float) -> None:
        while seconds > 0:
            self.alive()
            self.wait(min(seconds, _SIGN))
            seconds -= _SIGN


class Silence:
    """How long one storage has been silent. What takes long tells it of answers on the way: each ends a silence, and the next begins anew.

    May be used from several threads.
    """

    def __init__(self, patience: Patience, what: str) -> None:
        """`what` is asked from now on."""
        self._patience, self._what = patience, what
        self._lock = threading.Lock()
        self._answered_at = self._since = patience.clock()
        """The last answer, and since when it counts as silent."""
        self._tries = 0
        """In vain, in this silence."""
        self._count = 0
        """Of silences in which a try failed."""
        self._noted = False

    def answered(self) -> None:
        """Take note that it has answered."""
        with self._lock:
            now = self._patience.clock()
            if self._noted:
                waited = now - self._answered_at
                self._patience.note(f"{self._what} answers again, after {waited:.0f} s", False)
            self._answered_at = self._since = now
            self._tries, self._noted = 0, False

    def failed(self, error: Exception) -> float:
        """Return the seconds to wait after a try in vain. Raises StorageAway if that was the last one."""
        with self._lock:
            patience, what = self._patience, self._what
            self._tries += 1
            self._count += self._tries == 1
            waited = patience.clock() - self._since
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(": ")
            if self._count > _MOST_SILENCES:
                raise StorageAway(
                    f"{what} has broken off {self._count} times ({reason}); find out why, and start the job again"
                ) from error
            seconds = pause(waited, self._tries, patience.seconds)
            if seconds is None:
                raise StorageAway(
                    f"{what} has not answered for {waited:.0f} s ({reason}); --storage_seconds says how long a job waits for it"
                ) from error
            if self._tries == 1:
                self._note(f"waiting for {what}, for {patience.seconds:g} s at most: {reason}")
            return seconds

    def lasts(self) -> None:
        """Give a sign of life while one call takes its time. However long, it is no silence: a server that has gone breaks it off."""
        self._patience.alive()
        with self._lock:
            now = self._patience.clock()
            if not self._tries:
                self._since = now
            if now - self._answered_at >= _LONG and not self._noted:
                waited = now - self._answered_at
                self._note(f"waiting for {self._what}, which has been at one request for {waited:.0f} s")

    def _note(self, text: str) -> None:
        self._noted = True
        self._patience.note(text, True)
