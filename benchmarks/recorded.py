"""What the documentation keeps of benchmarks: each part's table and figures, with the machine, the day and the commit of its last run.

`python -m benchmarks --record` writes it to `docs/reference/benchmarks.json`, from which `make docs` makes the page.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "reference" / "benchmarks.json"
ELASTIC = FILE.with_name("elastic.json")
"""What `python -m benchmarks.elastic --record` keeps, whose parts are experiments; their pictures are beside it."""
_MOST = 1000.0
"""Times better than it must be that are told apart."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure of a picture.

    Attributes:
        what: for people.
        figure: for people, with its unit.
        verdict: `aim`, `must` or `short`.
        times: how many times better the figure is than it must be; less than 1 if it is short.
        aim: where the aim is on the same scale.
    """

    what: str
    figure: str
    verdict: str
    times: float
    aim: float


class Row(Protocol):
    """A line of a part's table."""

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `short`, or another word for what is only shown."""

    @property
    def bars(self) -> list[Bar]:
        """The figures that there are demands on."""


def judge(figure: float, must: float, aim: float) -> str:
    """Return `aim`, `must` or `short`; the larger the figure the better if the aim is above what must be."""
    reached = [figure >= limit if aim > must else figure <= limit for limit in (aim, must)]
    return "aim" if reached[0] else "must" if reached[1] else "short"


def bar(what: str, figure: float, shown: str, verdict: str, must: float, aim: float) -> Bar:
    """Return a figure's bar; the larger the figure the better if the aim is above what must be."""
    if aim > must:
        return Bar(what, shown, verdict, max(figure / must, 1 / _MOST), aim / must)
    # What costs nothing may be measured below 0.
    times = must / figure if figure > must / _MOST else _MOST
    return Bar(what, shown, verdict, times, must / aim)


@dataclass(frozen=True, slots=True)
class Part:
    """A part's last run.

    Attributes:
        name: of the part.
        about: its one sentence.
        day: year, month, day.
        commit: the code that was measured.
        machine: processors, memory, system.
        seconds: that it took.
        table: as printed.
        bars: the figures that there are demands on.
    """

    name: str
    about: str
    day: str
    commit: str
    machine: str
    seconds: int
    table: str
    bars: tuple[Bar, ...]


def load(file: Path | None = None) -> list[Part]:
    """Return the last run of each part that has been recorded, in the file of `make bench` or another one."""
    file = file or FILE
    if not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    return [Part(**{**one, "bars": tuple(Bar(**each) for each in one["bars"])}) for one in found]


def save(part: Part, order: Sequence[str], file: Path | None = None) -> None:
    """Put a part's run in the place of the one before; parts are kept in the given order."""
    file = file or FILE
    kept = {one.name: one for one in (*load(file), part)}
    listed = [asdict(kept[name]) for name in order if name in kept]
    file.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    """Return the commit of the code as it is. Raises RuntimeError if it has changed since."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/reference")
    if changed:
        raise RuntimeError(f"figures are recorded of a commit, and these files are not in one:\n{changed}")
    return _git("rev-parse", "--short=8", "HEAD")


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"figures are recorded of a commit, which git does not tell: {run.stderr.strip()}")
    return run.stdout.strip()


def machine() -> str:
    """Return a machine in words."""
    cores = len(os.sched_getaffinity(0))
    model = re.search(r"^model name\s*: (.*)$", _text("/proc/cpuinfo"), re.M)
    memory = re.search(r"^MemTotal: +(\d+) kB$", _text("/proc/meminfo"), re.M)
    said = [
        f"{cores} cores" + (f" of {' '.join(model[1].split())}" if model else ""),
        *([f"{int(memory[1]) / 2**20:.0f} GiB"] if memory else []),
        f"Linux {'.'.join(platform.release().split('.')[:2])}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(said)


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def today() -> str:
    """Return the day."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
