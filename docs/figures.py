"""The page of benchmarks and its picture, from what `python -m benchmarks --record` has kept."""

from __future__ import annotations

from benchmarks import recorded
from docs import drawing

_HEAD = """\
# Benchmarks

What ElasticDL costs and what it gains, each figure beside its peer in the same run; made by `make docs` from what
`python -m benchmarks --record` has measured. `make bench` measures all of it on your machine, `python -m benchmarks ring` one part.

Each row has a figure that *must* be reached and one that is the *aim*; the verdict in brackets is `aim`, `must`, or `short` of both. Most
figures are medians of several turns of both sides, and the processor time is shown beside the time where it tells more: machines that are
shared are noisy.
"""


def page() -> str:
    """Return `benchmarks.md`."""
    parts = recorded.load()
    bars = [bar for part in parts for bar in part.bars]
    counts = {verdict: sum(bar.verdict == verdict for bar in bars) for verdict in ("aim", "must", "short")}
    told = [
        _HEAD,
        f"Of {len(bars)} figures {counts['aim']} reach the aim, {counts['must']} what must be, {counts['short']} are short:\n",
        "![How many times better than it must be each figure is](benchmarks.svg)\n",
    ]
    for part in parts:
        table = part.table if part.table.startswith("|") else f"```text\n{part.table}\n```"
        told += [
            f"## {part.name.capitalize()}\n",
            f"{part.about}\n",
            f"{table}\n",
            f"*{part.day}, commit {part.commit}, {part.machine}; {part.seconds} s.*\n",
        ]
    return "\n".join(told)


def picture() -> str:
    """Return `benchmarks.svg`: how many times better than it must be each figure is."""
    return drawing.bars([(part.name, part.bars) for part in recorded.load()])
