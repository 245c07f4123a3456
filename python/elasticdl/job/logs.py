"""Reading the logs of a job's processes as one: merged by time, each line with the name of its process.

Lines that begin with a time are sorted by it; others (a traceback, what a user's program prints) stay with the line before them in
their own file.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.cluster.local.place import JobPlace
from elasticdl.errors import BadSetting

_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class _Tail:
    """One log: how far it has been read, and the beginning of a line that is still being written."""

    path: Path
    offset: int = 0
    rest: bytes = b""
    stamp: str = field(default="")

    def read(self, *, all_of_it: bool) -> list[tuple[str, str, str]]:
        """Return the new complete lines as (time, process, line); with `all_of_it` also an incomplete last one."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        if all_of_it and self.rest:
            lines.append(self.rest)
            self.rest = b""
        result = []
        for line in lines:
            text = line.decode(errors="replace")
            if stamp := _STAMP.match(text):
                self.stamp = stamp.group().replace("T", " ").replace(",", ".")
            result.append((self.stamp, self.path.stem, text))
        return result


def merged(place: JobPlace, role: str = "", *, follow: bool = False) -> Iterator[str]:
    """Yield the lines of a job's logs, in the order of their times.

    Args:
        place: the job.
        role: only processes whose name begins so: `worker`, `worker-3`, `worker-3-2`, `master`; all if empty.
        follow: go on with what is written until the job has ended.
    """
    tails: dict[Path, _Tail] = {}
    while True:
        live = (
            follow and place.running()
        )  # asked before reading, so that nothing written before the end is missed
        for path in sorted(place.logs.glob("*.log")):
            if role in ("", path.stem) or path.stem.startswith(f"{role}-"):
                tails.setdefault(path, _Tail(path))
        width = max((len(path.stem) for path in tails), default=0)
        parts = [tail.read(all_of_it=not live) for tail in tails.values()]
        if role and not tails and not live:
            known = ", ".join(sorted(path.stem for path in place.logs.glob("*.log"))) or "none"
            raise BadSetting(f"no process of {place.name} is named {role!r}; there are logs of {known}")
        for _, process, line in heapq.merge(*parts, key=lambda entry: entry[0]):
            yield f"{process:<{width}} | {line}"
        if not live:
            return
        time.sleep(_LOOK_SECONDS)
