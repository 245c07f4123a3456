"""Processes of the test cluster: started with a log of their own, ended by id, never left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LEAVE_SECONDS = 5.0
_LOOK_SECONDS = 0.05


class NotReady(Exception):
    """A component did not do in time what was waited for."""


@dataclass(slots=True)
class Component:
    """One process of the cluster.

    Attributes:
        name: for messages.
        argv: its command.
        log: file for what it prints.
    """

    name: str
    argv: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what an earlier life printed stays in the log."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(self.log.parent)},
            )

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, then kill it."""
        self._end(signal.SIGTERM)

    def runs(self) -> bool:
        """Tell whether it lives."""
        return self.process is not None and self.process.poll() is None

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def last_words(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""


def wait_for(
    what: str, ready: Callable[[], bool], seconds: float, components: Sequence[Component] = ()
) -> None:
    """Wait until `ready` holds. Raises NotReady with the last words of the components if it never does, or one has ended."""
    until = time.monotonic() + seconds
    while not ready():
        ended = [component for component in components if not component.runs()]
        if ended or time.monotonic() > until:
            why = f"{ended[0].name} has ended" if ended else f"not within {seconds:g} s"
            words = "\n".join(f"--- {one.name}\n{one.last_words()}" for one in ended or components)
            raise NotReady(f"{what}: {why}\n{words}")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Keep other processes waiting that want the same lock."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
