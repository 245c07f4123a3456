"""Taking from a master's queue what many members have said at once, so that what follows from it is worked out once.

When a group of a thousand breaks, each member says so within milliseconds, and each answer looks at all of them.
"""

from __future__ import annotations

import queue
from typing import TypeVar

from elasticdl.control.transport.stream import MemberClosed, MemberOpened, MemberSaid
from elasticdl.master.core.events import ConnectionLost, ConnectionOpened, Event, Heard

TOGETHER = 256
"""Events of members that are taken at once: a few milliseconds, as others wait."""

_Incoming = TypeVar("_Incoming")


def receive(inbox: queue.SimpleQueue[_Incoming], seconds: float) -> list[_Incoming]:
    """Wait for an event; return it with what else members have said by then. Raises queue.Empty after so many seconds."""
    events = [inbox.get(timeout=seconds)]
    while is_of_member(events[-1]) and len(events) < TOGETHER:
        try:
            events.append(inbox.get_nowait())
        except queue.Empty:
            break
    return events


def is_of_member(event: object) -> bool:
    """Tell whether something has come on a member's connection."""
    return isinstance(event, MemberSaid | MemberOpened | MemberClosed)


def may_wait(event: Event) -> bool:
    """Tell whether what follows from an event of a machine can be worked out with the next one, if that is of a member, too."""
    return isinstance(event, Heard | ConnectionOpened | ConnectionLost)
