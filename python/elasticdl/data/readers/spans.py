"""Bytes of files that are kept for the next minibatches of a task, whose records lie together and are asked for in another order.

It reads nothing itself, and what is kept is a short cut only: who reads without it gets the same records and hears of the same errors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticdl._core import Span

KEPT = 32 << 20
"""Bytes that are kept. A span has 4 MiB at most, so that a worker may take turns between eight tasks at least."""
_MANY = 256
"""Tasks that are remembered."""


@dataclass(slots=True)
class _Kept:
    """Of a task: how many of its records were not yet asked for, and its bytes once they are read, unless they are not worth it."""

    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_read: bool = False
    span: Span | None = None

    @property
    def size(self) -> int:
        return len(self.span) if self.span else 0


class Spans:
    """Spans of the tasks that are under way; one whose records were all asked for is forgotten.

    Who wants the records of one task waits while they are read; nobody else does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, int], _Kept] = OrderedDict()

    def of(
        self, name: str, start: int, end: int, records: int, read: Callable[[int, int], Span | None]
    ) -> Span | None:
        """Return the span of a task, of which so many records are asked for now; `read` reads it."""
        key = name, start, end
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept(end - start)
            kept.left -= records
            if kept.left > 0:
                self._kept[key] = kept
        with kept.lock:
            if not kept.is_read:
                kept.span, kept.is_read = read(start, end), True
        with self._lock:
            size = sum(one.size for one in self._kept.values())
            while size > KEPT or len(self._kept) > _MANY:
                size -= self._kept.popitem(last=False)[1].size
        return kept.span
