"""A master whose journal takes seconds for each view after the first, as the API of a busy cluster may."""

from __future__ import annotations

import time

from elasticdl.job import master
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.records import Record, ViewRecord

SECONDS = 5.0

append = Journal.append


def append_slowly(journal: Journal, number: int, record: Record) -> None:
    if isinstance(record, ViewRecord) and record.view.id > 1:
        time.sleep(SECONDS)
    append(journal, number, record)


Journal.append = append_slowly  # type: ignore[method-assign]
master.main()
