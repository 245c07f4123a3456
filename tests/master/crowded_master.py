"""A master whose journal has room for a few records only, as an object of a cluster has for a few views of many members."""

from __future__ import annotations

from elasticdl.job import master
from elasticdl.master.core.filepages import FilePages

ROOM = 6


def crowded(pages: FilePages) -> bool:
    return sum(bool(pages.read(number)) for number in pages.numbers()) > ROOM


FilePages.crowded = property(crowded)  # type: ignore[assignment, method-assign]
master.main()
