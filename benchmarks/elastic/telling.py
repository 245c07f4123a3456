"""What people see of an experiment: tables, the figures that there are demands on, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic.cluster import UNITS
from benchmarks.elastic.holding import held
from benchmarks.elastic.outcome import Outcome
from benchmarks.recorded import Bar, bar, judge

BINS = 300
"""Of the longest way of a picture."""


def judged(what: str, figure: float, shown: str, must: float, aim: float) -> Bar:
    """Return a figure with its verdict; the larger the better if the aim is above what must be."""
    return bar(what, figure, shown, judge(figure, must, aim), must, aim)


def batch_table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a line for each job."""
    lines = [
        "| | makespan | used | job | waits for its first step | ends after | most workers | beyond its chunk, a step takes |",
        "| --- " * 8 + "|",
    ]
    for outcome in outcomes:
        start = f"| {outcome.way} | {outcome.makespan:.0f} s | {outcome.used:.1%} "
        for job in outcome.jobs:
            lines.append(
                f"{start}| {job.name} | {job.first_step - job.submitted:.0f} s | {job.ended - job.submitted:.0f} s "
                f"| {job.members} | {job.overhead * 1e3:.0f} ms |"
            )
            start = "| | | "
    return "\n".join(lines)


def places_table(outcomes: Sequence[Outcome]) -> str:
    """Return a table of where all unit-seconds were."""
    places = [place for place in outcomes[0].spent if any(outcome.spent[place] for outcome in outcomes)]
    lines = [
        f"| unit-seconds | {' | '.join(one.way for one in outcomes)} |",
        "| --- " * (len(outcomes) + 1) + "|",
    ]
    for place in places:
        lines.append(f"| {place} | {' | '.join(f'{one.share(place):.1%}' for one in outcomes)} |")
    return "\n".join(lines)


def share_of(outcome: Outcome) -> str:
    """Return how many chunks were computed that no committed step has, of how many."""
    return (
        f"{sum(job.again for job in outcome.jobs)} of {sum(len(job.chunks) for job in outcome.jobs):,} chunks"
    )


def draw(outcomes: Sequence[Outcome], path: Path, chunk_seconds: float) -> None:
    """Draw units in committed steps over time, one row for each way; pauses shorter than two chunks are filled."""
    import matplotlib as mpl
    import numpy as np

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "elasticdl"  # the same figure for the same figures
    from matplotlib import pyplot

    longest = max(outcome.makespan for outcome in outcomes)
    resolution = max(2 * chunk_seconds, longest / BINS)
    figure, rows = pyplot.subplots(
        len(outcomes), 1, sharex=True, figsize=(8, max(3.0, 2.2 * len(outcomes))), squeeze=False
    )
    edges = np.arange(0, longest + 2 * resolution, resolution)
    for axes, outcome in zip(rows[:, 0], outcomes, strict=True):
        parts: dict[str, list[tuple[float, float]]] = {}
        running = [(life.running, life.ended) for life in outcome.service]
        if running:
            parts["the service's pods"] = [
                (begin, outcome.end if end is None else end) for begin, end in running if begin is not None
            ]
        for job in outcome.jobs:
            parts[f"{job.name} job"] = [(one.begin, one.end) for one in job.chunks if one.counts]
        layers = []
        for intervals in parts.values():
            total = np.zeros(len(edges) - 1)
            for begin, end in intervals:
                low, high = begin - outcome.begin, min(end, outcome.end) - outcome.begin
                total += np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None)
            layers.append(total / resolution)
        axes.stackplot(edges[:-1], layers, step="post", labels=list(parts), linewidth=0)
        times, units = zip(*held(outcome.lives), strict=True)
        axes.step(
            [at - outcome.begin for at in times],
            units,
            where="post",
            color="black",
            linewidth=0.8,
            label="held by pods",
        )
        axes.axhline(UNITS, color="grey", linestyle=":", linewidth=0.8)
        axes.axvline(outcome.makespan, color="grey", linewidth=0.8)
        axes.set_title(
            f"{outcome.way}: {outcome.makespan:.0f} s, {outcome.used:.1%} used", fontsize=10, loc="left"
        )
        axes.set(ylabel="units", ylim=(0, UNITS + 2), xlim=(0, longest * 1.01))
    names = rows[0, 0].get_legend_handles_labels()
    figure.legend(*names, fontsize=8, loc="lower center", ncols=5)
    rows[-1, 0].set_xlabel("seconds")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
