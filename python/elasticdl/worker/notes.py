"""What a worker notes in the history of the job is in its own log, too."""

from __future__ import annotations

import logging
from collections.abc import Callable

from elasticdl.control.protocol.messages import MemberMessage, Note

_log = logging.getLogger(__name__)
Sending = Callable[[MemberMessage], bool]


def with_log_of_notes(send: Sending) -> Sending:
    """Return what sends messages, and logs those that are for people."""

    def sends(message: MemberMessage) -> bool:
        if isinstance(message, Note):
            _log.info("%s: %s", message.kind, message.text)
        return send(message)

    return sends
