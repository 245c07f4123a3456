"""How a launcher learns that a process was killed before Linux has taken its memory down.

A process that is killed closes its sockets, and ends for its parent, only when its last thread has given its memory back: 30 to 120 ms with
TensorFlow. None of its threads has run any of its code since. What shows that sooner:

- **The end of a thread** with a table of descriptors of its own, in which there is one end of a pair of sockets: that one is closed as soon
  as the thread ends. It says of one thread only that it has ended, so it tells when to look.
- **A look at all threads.** A thread that has begun to exit (PF_EXITING, `include/linux/sched.h`) never returns to its program: Linux sets
  the flag in `do_exit` before it takes anything down. If all of them have, none runs any code of the program any more: that proves it as
  `waitpid` does. A list of threads may lack some while others are released, so their number has to agree while all of the list are there.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from elasticdl.cluster.local import inherited

ENVIRONMENT = "ELASTICDL_EXIT_SOCKETS"
"""Environment variable with the process's ends as `Ends.environment` writes them."""

_EXITING = 0x4
"""PF_EXITING."""
_FLAGS, _THREADS, _CODE = 6, 17, 49
"""Places of `flags`, `num_threads` and `exit_code` in /proc/PID/stat, counted from the one after the name (proc(5))."""
_SIGNAL = 0x7F
"""The signal in a wait status."""
_CLOSE_RANGE, _OWN_TABLE = 436, 2
"""Number of close_range(2), and CLOSE_RANGE_UNSHARE."""
_LAST_DESCRIPTOR = 0xFFFFFFFF
_WITNESSES = 2
"""Threads whose end is seen: the last thread of a process gives the memory back before its end is seen, and not both can be that."""
_PAUSES = (*(1,) * 50, *(10,) * 100)
"""Milliseconds between looks. A thread that is in the kernel, or waits for a processor, begins to exit a little later, and nothing tells
when.
"""


class Ends:
    """Pairs of sockets between a launcher and a process that it is going to start.

    There are none where the system does not show the ends of threads, or no descriptor is left; then a process ends for its parent only.
    """

    def __init__(self, count: int = _WITNESSES) -> None:
        """Open so many; 0: of a process whose end its parent alone is to see."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            # Not a /proc of other processes: in a namespace of pids of its own that may be.
            if hasattr(os, "pidfd_open") and Path("/proc/self").readlink() == Path(str(os.getpid())):
                for _ in range(count):
                    self._pairs.append(socket.socketpair())
        except OSError:
            self.close()
            self._pairs = []

    @property
    def theirs(self) -> tuple[int, ...]:
        """Descriptors for the process."""
        return tuple(end.fileno() for _, end in self._pairs)

    @property
    def environment(self) -> dict[str, str]:
        """What its environment has of them."""
        return {ENVIRONMENT: ",".join(map(inherited.written, self.theirs))} if self._pairs else {}

    def started(self) -> None:
        """Close what the process has now."""
        for _, end in self._pairs:
            end.close()

    def close(self) -> None:
        """Close all."""
        for ours, theirs in self._pairs:
            ours.close()
            theirs.close()

    def wait_killed(self, pid: int) -> int | None:
        """Wait until the process ends; return the signal that kills it as soon as it does nothing any more.

        None: it ends in another way, or that could not be seen. It must not have been reaped, and is not reaped here.
        """
        if not self._pairs:
            return None
        try:
            ended = os.pidfd_open(pid)
        except OSError:  # no descriptor is left, or the kernel is older than 5.3
            return None
        try:
            waiting = select.poll()
            for descriptor in (ended, *(ours.fileno() for ours, _ in self._pairs)):
                waiting.register(descriptor, select.POLLIN)
            waiting.poll()
            for ours, _ in self._pairs:
                waiting.unregister(ours.fileno())
            for pause in (0, *_PAUSES):
                has_ended = bool(waiting.poll(pause))
                number = killed_by(pid)
                if has_ended or number is not None:
                    return number or None
            return None  # its threads have closed them, for whatever reason
        finally:
            os.close(ended)


def announce() -> None:
    """Let the launcher see when this process is killed; do nothing without a launcher that looks."""
    text = os.environ.pop(ENVIRONMENT, "")
    ends = [end for one in text.split(",") if one and (end := inherited.found(one)) is not None]
    for end in ends:
        ready = threading.Event()
        threading.Thread(target=_hold, args=(end, ready), name="exit", daemon=True).start()
        ready.wait()
    for end in ends:
        os.close(end)


def _hold(end: int, ready: threading.Event) -> None:
    """Have a table of descriptors with this one alone, as long as this thread lives."""
    call = ctypes.CDLL(None).syscall
    try:
        own = _close(call, end + 1, _LAST_DESCRIPTOR, _OWN_TABLE) and _close(call, 0, end - 1, 0)
    finally:
        ready.set()
    if own:
        os.read(end, 1)  # nothing is ever written: until the launcher has gone


def _close(call: Callable[..., int], first: int, last: int, flags: int) -> bool:
    """Close descriptors of this thread's table; return whether that is possible."""
    return call(*map(ctypes.c_long, (_CLOSE_RANGE, first, last, flags))) == 0


def killed_by(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the signal that kills a process none of whose threads will run any of its code, 0 if no signal does; None if one may run."""
    folder = proc / str(pid)
    try:
        listed = list((folder / "task").iterdir())
        if not all(int(_fields(thread)[_FLAGS]) & _EXITING for thread in listed):
            return None
        process = _fields(folder)
        # All of the list were there when the threads were counted if they are there now. Who exits begins no other.
        if int(process[_THREADS]) != len(listed) or not all(thread.exists() for thread in listed):
            return None
        return int(process[_CODE]) & _SIGNAL
    except (OSError, ValueError, IndexError):  # a thread or the process has gone, or /proc does not tell
        return None


def _fields(folder: Path) -> list[bytes]:
    return (folder / "stat").read_bytes().rpartition(b")")[2].split()
