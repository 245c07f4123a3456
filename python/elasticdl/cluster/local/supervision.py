"""Whether a master that has ended is started again, and when.

A pure decision of the launcher. Its rule: the end of a master is the end of the job only if the master says so by its exit
code; a killed master is always started again, because the journal is all it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

FINAL_CODES = frozenset({0, 1, 2, 130})
"""Exit codes by which a master ends the job: finished, failed, bad input, interrupted."""

ERRORS_IN_A_ROW = 5
"""So many lives that end by an error of the master's own program, one right after the other, end the job as failed."""

SHORT_LIFE = 10.0
"""Seconds; a master that lived longer starts with a clean record."""

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """What the launcher remembers of the masters before.

    Attributes:
        short_lives: lives in a row shorter than SHORT_LIFE.
        errors: of those, how many in a row ended by an error of the program.
    """

    short_lives: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the next life after `delay` seconds."""

    record: Record
    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over with this exit code."""

    code: int
    reason: str


def launcher_failed(error: Exception) -> JobEnded:
    """Return the end of a job whose launcher can't go on."""
    return JobEnded(1, f"the job's launcher failed: {type(error).__name__}: {error}")


def after_master(
    record: Record, lived: float, code: int | None, signal: int | None, why: str = ""
) -> Restart | JobEnded:
    """Decide what follows the end of a master.

    The first restart comes at once; further short lives double the delay, from FIRST_DELAY to LONGEST_DELAY.

    Args:
        record: of the masters before.
        lived: seconds.
        code: its exit code, or None.
        signal: the signal that ended it, or None.
        why: why it could not be started at all; empty if it was.
    """
    if code is not None and code in FINAL_CODES:
        return JobEnded(code, f"the master ended with code {code}")
    short = record.short_lives + 1 if lived < SHORT_LIFE else 1
    errors = (record.errors + 1 if lived < SHORT_LIFE else 1) if code is not None else 0
    if errors >= ERRORS_IN_A_ROW and why:
        return JobEnded(1, f"the master can't be started, tried {errors} times: {why}")
    if errors >= ERRORS_IN_A_ROW:
        return JobEnded(1, f"the master ended {errors} times in a row with code {code}; its log says why")
    delay = 0.0 if short == 1 else min(LONGEST_DELAY, FIRST_DELAY * 2 ** (short - 2))
    if why:
        return Restart(Record(short, errors), delay, f"the master can't be started: {why}")
    how = f"signal {signal}" if code is None else f"code {code}"
    return Restart(Record(short, errors), delay, f"the master ended by {how} after {lived:.1f} s")
