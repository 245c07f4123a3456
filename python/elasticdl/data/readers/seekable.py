"""A file on a server as libraries read files: at any place.

Each read is a request, unless what it reads was fetched before. It knows nothing of servers: parts come from a function.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class Seekable(io.RawIOBase):
    """A file of which any part can be read."""

    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        """`part` returns the bytes from a place to before another one; `size`: how many there are."""
        self._part, self._size, self._at = part, size, 0
        self._fetched, self._fetched_at = b"", 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that any part can be read."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def fetch(self, start: int, end: int) -> None:
        """Fetch the bytes from `start` to before `end`, as far as there are some; reads within them are no requests."""
        end = min(end, self._size)
        if not (self._fetched_at <= start and end <= self._fetched_at + len(self._fetched)):
            self._fetched, self._fetched_at = self._part(start, max(start, end)), start

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, so many at most; fewer at the end of what was fetched."""
        inside = self._at - self._fetched_at
        if size >= 0 and 0 <= inside < len(self._fetched):
            content = self._fetched[inside : inside + size]
        else:
            end = self._size if size < 0 else min(self._size, self._at + size)
            content = self._part(self._at, max(self._at, end))
        self._at += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return how many they are."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
