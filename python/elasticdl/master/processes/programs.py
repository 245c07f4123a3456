"""How the user's own program may end as a worker: a pure decision.

Exit codes say what the master has told a worker, and an entry point of ours knows them. A program may end with any code, also before it has
called `elasticdl.init()`, from which on it behaves as a worker; then a code proves nothing, and starting it again leads to the same end.
"""

from __future__ import annotations

import re

from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED, Blame, ProcessEnded

_ERROR = re.compile(
    r"(?:\S*python[\d.]*: )?(?P<said>No module named .+|can't open file .+|[A-Z]\w*(?:Error|Exception)(?:: .+)?)"
)
"""The last line of a program that Python could not start, or has ended by an exception."""

_MESSAGE_LINES = 20
"""In which an exception is looked for at the end of a log."""


def with_cause(why: str, words: str) -> str:
    """Return why a program is given up, with what Python said of it first, if its log ends with that."""
    lines = words.rstrip().splitlines()[-_MESSAGE_LINES:]
    last = _ERROR.fullmatch(lines[-1].strip()) if lines else None
    if last is None:  # a message of several lines begins below the last line of code
        below = (
            second
            for first, second in zip(reversed(lines[:-1]), reversed(lines[1:]), strict=True)
            if first[:1] == " " and second[:1] != " "
        )
        last = _ERROR.fullmatch(next(below, ""))
    return f"{last['said']}: {why}" if last else why


def why_fault(program: str, ended: ProcessEnded, *, connected: bool, evicted: bool, released: bool) -> str:
    """Return why an end is a fault of the program, as the rest of a sentence; empty if its code says enough.

    Args:
        program: what it is called.
        ended: its end.
        connected: it has opened a connection to the master.
        evicted: it was told that its group has left it out.
        released: it was told that it may go.
    """
    if ended.code is None or ended.blame is not Blame.PROGRAM:
        return ""
    if not connected:
        remedy = (
            f" (does {program} call elasticdl.init() or elasticdl.shards()?)"
            if ended.code in (FINISHED, EVICTED, RELEASED)
            else ""
        )
        return f"has ended with exit code {ended.code} before it was connected to the job{remedy}"
    # Workers of ours end with these codes when the master says so; programs that know nothing of that may, too.
    told = {FINISHED: False, EVICTED: evicted, RELEASED: released}
    if not told.get(ended.code, True):
        return (
            f"has ended with exit code {ended.code} before the job was over, and has not said why (does {program}, or a library that it "
            f"uses, call os._exit({ended.code})? Let the loop run to its end, or raise an exception)"
        )
    return ""
