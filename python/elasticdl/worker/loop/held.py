"""Threads that hold up the end of a program: Python waits for those that are no daemons, before anything else learns that it has ended."""

from __future__ import annotations

import sys
import threading
import time

SECONDS = 5.0
"""For how long a thread may finish its work before it is named."""


def watch_end(seconds: float = SECONDS) -> None:
    """Say on standard error which threads the process still waits for, so long after the program's last line."""
    threading.Thread(target=_watch, args=(seconds,), name="end", daemon=True).start()


def _watch(seconds: float) -> None:
    threading.main_thread().join()
    until = time.monotonic() + seconds
    held = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    for one in held:
        one.join(max(0.0, until - time.monotonic()))
    if names := ", ".join(sorted(one.name for one in held if one.is_alive())):
        print(
            f"the program has ended, but Python waits for its threads {names}, and the job with it: end them, or make them daemon=True",
            file=sys.stderr,
            flush=True,
        )
