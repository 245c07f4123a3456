"""Tells people of connections that a acceptor of the core has refused: a line for each, and one for the rest when there are many.

The core counts and remembers the first few; it has no log of its own, so that it needs no interpreter while it refuses.
"""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0
"""Least time between two looks that find something: who knocks all day fills no disk."""


class Acceptor(Protocol):
    """What refuses: a `ControlServer`, or an `Endpoint` or a `HeartMonitor` of `elasticdl._core`."""

    def refusals(self) -> tuple[list[tuple[str, str]], int]:
        """Return whom it has refused since the last call: (where from, why) of the first few, and the number of others."""


class RefusalLog:
    """The log's view of one acceptor."""

    def __init__(self, acceptor: Acceptor, what: str) -> None:
        """`what`: what was knocked at, in a few words."""
        self._acceptor = acceptor
        self._what = what
        self._next = 0.0

    def look(self, now: float) -> None:
        """Log what was refused since the last look, unless that was just now; `now`: seconds of a clock that never goes back."""
        if now < self._next:
            return
        first, others = self._acceptor.refusals()
        if first:
            self._next = now + _QUIET_SECONDS
        for address, why in first:
            _log.warning("%s: connection from %s refused: %s", self._what, address, why)
        if others:
            _log.warning("%s: %d more connections were refused", self._what, others)
