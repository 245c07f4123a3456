"""Names of the files of predictions: a directory with one part for each task, under another name until all parts are there.

Of predictions that go to a table the parts are its source, and are removed with the job.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

_NAME_LENGTH = 50
"""Characters of the directory's name in its draft's; see `drafts.py`."""


def draft_of(output: Path, job_key: bytes) -> Path:
    """Return where the parts of one job lie until the job is done: beside `output`, by a name that nobody else can guess."""
    return marked_draft_of(output, mark_of(job_key))


def marked_draft_of(output: Path, mark: str) -> Path:
    """Return the same for who knows only the job's mark; `output` may be the file of a database, too."""
    return output.with_name(f".{output.name[:_NAME_LENGTH]}.{mark[:16]}.draft")


def mark_of(job_key: bytes) -> str:
    """Return a name that is one job's alone, for ever: 64 hexadecimal digits, of which nobody can guess the key."""
    return hmac.new(job_key, b"predictions", hashlib.sha256).hexdigest()


def parts_of(draft: Path) -> Path:
    """Return the directory in it that becomes the result; what is being written lies beside it."""
    return draft / "parts"


def part_name(task: int, suffix: str) -> str:
    """Return the name of a task's part; `suffix`: `parquet` or `csv`."""
    return f"part-{task:08d}.{suffix}"
