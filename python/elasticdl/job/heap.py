"""How a process that passes large messages keeps its memory.

A push or a pull has megabytes in a few pieces. As it comes, glibc's allocator gives such a piece back to the kernel when it is freed, and
the next one costs a page fault for each 4 KiB: more than a tenth of what a push takes.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of mallopt(3), from glibc's `malloc.h`."""
_KEPT = 16 << 20
"""Bytes that stay free at the end of each of the allocator's heaps, of which it has some for a process with many threads, and the largest
piece that is taken from them."""


def keep_freed_memory() -> None:
    """Let the allocator keep what this process frees for what it needs next; does nothing where the C library is another one."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT)
