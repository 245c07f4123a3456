"""A master whose journal can't be written while a file named `full` lies in the job's folder, or ever with the argument `full`."""

from __future__ import annotations

import errno
import os
import sys

from elasticdl.cluster.local.place import own_place
from elasticdl.job import master
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import Record

FULL = own_place().path / "full"
append = Journal.append


def fail_while_full(journal: Journal, number: int, record: Record) -> None:
    if FULL.exists() or "full" in sys.argv[1:]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    append(journal, number, record)


Journal.append = fail_while_full  # type: ignore[method-assign]
master.main()
