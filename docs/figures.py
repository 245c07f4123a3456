"""The pages of benchmarks and their picture, from what `python -m benchmarks --record` and that of `benchmarks.elastic` have kept."""

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

_ELASTIC_HEAD = """\
# Benchmarks of elastic scheduling

Elastic jobs beside gangs and beside a service, in the pods of a real cluster of 24 units; made by `make docs` from what
`python -m benchmarks.elastic --record` has measured. What the figures mean, and how to measure them on your machine, is in [elastic
scheduling](../concepts/elastic-scheduling.md).
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
        told += [*_about(part), f"{table}\n", _last_run(part)]
    return "\n".join(told)


def elastic_page() -> str:
    """Return `elastic.md`."""
    told = [_ELASTIC_HEAD]
    for part in recorded.load(recorded.ELASTIC):
        told += [*_about(part), f"![units over time](elastic-{part.name}.svg)\n", f"{part.table}\n"]
        told += [f"- {bar.what}: {bar.figure} ({bar.verdict})" for bar in part.bars]
        told += ["", _last_run(part)]
    return "\n".join(told)


def _about(part: recorded.Part) -> list[str]:
    return [f"## {part.name.capitalize()}\n", f"{part.about}\n"]


def _last_run(part: recorded.Part) -> str:
    return f"*{part.day}, commit {part.commit}, {part.machine}; {part.seconds} s.*\n"


def picture() -> str:
    """Return `benchmarks.svg`: how many times better than it must be each figure is."""
    return drawing.bars([(part.name, part.bars) for part in recorded.load()])
