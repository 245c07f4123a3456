"""Keep a process that holds keys of a job out of core dumps.

By its limit of core dumps, not by `PR_SET_DUMPABLE`: a process that is not dumpable belongs to root in `/proc`, so that its own user's
debuggers and profilers can't look at a worker that hangs, and neither may its own program write what it finds there.
"""

from __future__ import annotations

import resource

_NONE = 1
"""Bytes. A file of less than a page is not written, and of a pattern that is a pipe (`core_pattern` of systemd-coredump and others), which
ignores a limit of 0, Linux takes this very value as "no dump" (`fs/coredump.c`)."""


def forbid_core_dumps() -> None:
    """See to it that this process and those that it starts leave no core dump.

    The hard limit stays, so that a program that wants a dump for itself can ask for it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == resource.RLIM_INFINITY or hard >= _NONE:
        resource.setrlimit(resource.RLIMIT_CORE, (_NONE, hard))
