"""The one exception tree of ElasticDL.

::

    ElasticDLError
    ├── BadInput            what the user gave can't work: exit code 2, nothing half-created
    │   ├── BadSetting      a flag, a YAML key or an argument
    │   ├── BadModel        the model file
    │   ├── BadData         records, files, what `feed` returned
    │   │   └── MissingData nothing has the name that the data should have
    │   └── BadStatement    an SQL statement
    ├── StorageAway         a server of data has been silent for too long
    ├── Unwritable          a disk or volume does not take what has to be written
    ├── JobFailed           the job ended without its result: exit code 1
    ├── Interrupted         the person stopped the job: exit code 130
    ├── RingBroken          a ring lost a member; the view ends (never a program error)
    ├── Cancelled           a blocking call was cancelled from the control thread
    ├── TransferFailed      a state transfer broke off or did not verify
    ├── MasterAway          the job's master, or its cluster, does not answer: it starts again, or the job has ended
    ├── JournalConflict     another master appended this record: this master is replaced
    └── AuditFailed         the audit's proof does not hold

It is not a place for error handling: layers raise these, only `cli` and the process entry points turn them into
exit codes. Messages say what, where and what to do next.
"""

from __future__ import annotations

import errno


class ElasticDLError(Exception):
    """Root of all errors that ElasticDL raises on purpose."""


class BadInput(ElasticDLError):
    """What the user gave can't work."""


class BadSetting(BadInput):
    """A flag, a key of the job file or an argument is wrong."""


class BadModel(BadInput):
    """The model file is wrong; the message names file and line."""


class BadData(BadInput):
    """Records, their files or what `feed` made of them are wrong; the message names file and record."""


class MissingData(BadData):
    """There is no file or directory of this name."""


class BadStatement(BadInput):
    """A statement of SQL is wrong; the message names file and line, and shows the piece."""


class StorageAway(ElasticDLError):
    """A server of data has not answered for as long as the job waits for it."""


class Unwritable(ElasticDLError):
    """A disk or volume does not take what has to be written.

    Attributes:
        what: the message without what to do about it.
    """

    def __init__(self, what: str, error: OSError, then: str) -> None:
        """`what` can't be written, and where; `then`: what to do when it can."""
        reason = error.strerror or str(error)
        self.what = f"{what}: {reason[:1].lower()}{reason[1:]}"
        remedy = "free some" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
        super().__init__(f"{self.what}; {remedy}, and {then}")


class JobFailed(ElasticDLError):
    """The job ended without its result."""


class Interrupted(ElasticDLError):
    """The person stopped the job."""


class RingBroken(ElasticDLError):
    """A ring lost a member in mid-step; the view ends.

    Attributes:
        rank: position in the view of the member that is accused, or None when nobody can be named.
        how: `eof`, `refused`, `deadline`, `stale` or `malformed`.
    """

    def __init__(self, message: str, rank: int | None = None, how: str = "eof") -> None:
        super().__init__(message)
        self.rank = rank
        self.how = how


class Cancelled(ElasticDLError):
    """A blocking call was cancelled from the control thread."""


class TransferFailed(ElasticDLError):
    """A state transfer broke off or its checksum did not match."""


class MasterAway(ElasticDLError):
    """The job's master, or the cluster in which it is, does not answer: it starts again, or the job has ended."""


class JournalConflict(ElasticDLError):
    """Record n+1 exists and is not mine: another master is in charge (rule J2)."""


class AuditFailed(ElasticDLError):
    """The audit's proof does not hold."""
