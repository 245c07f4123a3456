"""What the loops of workers take from a job, whichever way it trains: its settings, and who sends heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elasticdl.control.protocol.messages import MetricValues
from elasticdl.errors import BadSetting
from elasticdl.spec.grammar import BestMetric

AHEAD = 4
"""Chunks that are read and converted before they are needed; more only costs memory."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop takes from the job's settings.

    Attributes:
        silence: seconds without a byte in the middle of a transfer before a peer counts as lost.
        on_nan: `fail` or `skip_step`.
        output: final path of the result, None if nothing is exported.
        output_format: name of one of the framework's formats, or `parquet` for tables on parameter servers.
        snapshots: folder for snapshots, one that every worker can read; None: there is none, so no snapshot is kept.
        checkpoint_best: the metric by which checkpoints are chosen, None if none is.
        get_model_steps: with parameter servers: chunks from one pull of the dense variables to the next.
        short_gradients: the members of a group send each other gradients as bfloat16.
    """

    silence: float
    on_nan: str
    output: Path | None
    output_format: str
    snapshots: Path | None
    checkpoint_best: BestMetric | None = None
    get_model_steps: int = 1
    short_gradients: bool = False


def value_of(choice: BestMetric, values: MetricValues) -> float:
    """Return the metric by which checkpoints are chosen. Raises BadSetting if there is none of its name."""
    known = dict(values)
    if choice.metric not in known:
        raise BadSetting(
            f"--checkpoint_best: there is no metric {choice.metric!r}; known: {', '.join(known)}"
        )
    return known[choice.metric]


class Beats(Protocol):
    """Who sends heartbeats."""

    def set(self, view: int, step: int, progress: int) -> None:
        """Say what the next ones say: current view, step under way, progress."""
