"""Keeping what TensorFlow's library says when it is loaded out of a terminal.

Its C++ code writes to descriptor 2 before any setting of its log level is read. So that descriptor leads through a small process meanwhile,
which passes on everything else at once: also what is written last by a process that the import kills.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from elasticdl.files.permissions import private

_END_SECONDS = 5.0
"""A process that was started meanwhile, and lives on, holds the descriptor too; what it writes is passed on until it ends."""

_FILTER = r"""
import os, re, sys
spoken = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$|I0000 00:00:\d")
with open(sys.argv[1], "ab", buffering=0) as log:
    for line in sys.stdin.buffer:
        if spoken.match(line.rstrip()):
            log.write(line)
        else:
            os.write(2, line)
"""
"""What absl says before it is set up, of the level of information; warnings and errors are not matched."""


@contextlib.contextmanager
def greeting_to(log: Path) -> Iterator[None]:
    """Write TensorFlow's lines of information to the end of `log` instead of to descriptor 2, here and in processes started meanwhile.

    Where that can't be done nothing is changed.
    """
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):
            _lead(undo, log)
        yield


def _lead(undo: contextlib.ExitStack, log: Path) -> None:
    """Lead descriptor 2 through the filter until `undo` is closed. Raises OSError."""
    open(log, "ab", opener=private).close()  # the filter would end at once where it can't be written
    _flush()
    usual = os.dup(2)
    undo.callback(os.close, usual)
    # a session of its own: Ctrl-C is for this process, whose last words are passed on
    filtering = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert filtering.stdin is not None
    undo.callback(_await, filtering)
    os.dup2(filtering.stdin.fileno(), 2)
    filtering.stdin.close()
    undo.callback(os.dup2, usual, 2)
    undo.callback(_flush)


def _flush() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _await(filtering: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        filtering.wait(_END_SECONDS)
