"""The parent-death watch: how processes of a local job notice that their launcher has died, however it died.

Each inherits the read end of a pipe whose write end only the launcher has, so that its death is an end of file, without
polling. A process that is stopped (SIGSTOP) reads nothing: Linux continues it when the launcher's thread that started it has
ended. Not for orderly ends: the launcher signals its children then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

from elasticdl.cluster.local import inherited
from elasticdl.errors import BadSetting

ENVIRONMENT = "ELASTICDL_PARENT_PIPE"
"""Environment variable with the descriptor of the read end."""

ORPHANED = 1
"""Exit code of a process whose launcher has died; nobody is left to read it."""

_PR_SET_PDEATHSIG = 1
"""Of `prctl(2)`: the signal that a process gets when the thread that started it has ended."""


def watch_parent(clean: Callable[[], None] = lambda: None) -> None:
    """Start the thread that ends this process, and what it has started, when its launcher has died; do nothing without a launcher.

    Args:
        clean: called before the end, for what the launcher can't do any more.

    Raises BadSetting if another program has started this one, and has not left it what the launcher had opened.
    """
    text = os.environ.pop(ENVIRONMENT, "")
    if not text:
        return
    descriptor = inherited.found(text)
    if descriptor is None:
        raise BadSetting(
            "this process has the environment of a worker, and not the descriptors that its launcher opened for it: a program that starts "
            "another one has to become it (`exec`), or to leave them open (subprocess.Popen(…, close_fds=False))"
        )
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    threading.Thread(target=_end_with, args=(descriptor, clean), name="parent-death", daemon=True).start()


def _end_with(descriptor: int, clean: Callable[[], None]) -> None:
    try:
        while os.read(descriptor, 1):
            pass
        clean()
    finally:
        if (
            os.getpgrp() == os.getpid()
        ):  # the group is that of the session in which it was started, and has what it has forked
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(ORPHANED)
