"""Questions to the master of a local job, which may be starting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import MasterAway

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.1


def ask(place: JobPlace, question: Callable[[JobClient], Answer]) -> Answer:
    """Ask a job's master; one that is just starting, for the first time or again, is waited for while the job runs.

    Raises MasterAway, BadSetting if the question is refused, or if the job has ended.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with JobClient(place.control_address, place.token()) as client:
                return question(client)
        except MasterAway:
            if time.monotonic() > until or not place.running():
                raise
        time.sleep(_RETRY_SECONDS)


def ends(place: JobPlace) -> bool:
    """Tell whether a job has ended, once its launcher has written how if it is about to."""
    until = time.monotonic() + PATIENCE_SECONDS
    while place.running():
        if place.has_token() or time.monotonic() > until:
            return False
        time.sleep(_RETRY_SECONDS)  # another process's lock has no event
    return True
