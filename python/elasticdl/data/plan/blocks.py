"""Ranges of records that tasks are cut of without splitting blocks: row groups, batches, chunks, whatever is decoded as a whole.

Pure arithmetic on numbers of records. Who needs a record decodes its whole block, so a block that two tasks share is decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterable


def unsplit(blocks: Iterable[int], records_per_task: int) -> list[tuple[int, int]]:
    """Return (first record, number of records) of ranges that cover blocks of these numbers of records in a row.

    Cut by itself in tasks of `records_per_task` records, which no block exceeds, and a shorter last one, no range splits a block. As few
    ranges as tasks allow: blocks of one size that fills a task are one range.
    """
    ranges: list[tuple[int, int]] = []
    start = end = 0
    task = 0  # where the range's last task begins
    for records in blocks:
        if end + records - task > records_per_task:
            if end - task < records_per_task:
                ranges.append((start, end - start))
                start = end
            task = end
        end += records
    return [*ranges, (start, end - start)] if end > start else ranges
