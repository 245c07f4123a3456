"""What the master of a job with parameter servers takes from the job's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import machine as core
from elasticdl.master.core.evaluationresults import AddUp, ResultSize
from elasticdl.master.core.records import ResumedRecord
from elasticdl.spec.grammar import BestMetric
from elasticdl.spec.jobspec import PsRestore


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(core.Settings):
    """What the master of a job with parameter servers takes from its settings.

    Attributes:
        servers: how many parameter servers the job wants (until `scale` says otherwise).
        replicas: servers that hold each slot, 1 or 2.
        snapshots: directory for snapshots, empty if there are none.
        checkpoint_steps: chunks between two, 0: one each epoch.
        lasting: they are checkpoints, which outlive the job.
        checkpoint_best: the metric by which one more is chosen, None if none is.
        resume: the job's data → where it continues from an earlier job's checkpoint; None: it begins anew, or that is journalled.
        restore: what the loss of all copies of a slot does.
        accumulates: servers sum up the gradients of a wave's tasks.
        add_up: adds up what evaluation tasks have found.
        result_size: the bytes of what one has found.
    """

    servers: int
    replicas: int
    snapshots: str = ""
    checkpoint_steps: int = 0
    lasting: bool = False
    checkpoint_best: BestMetric | None = None
    resume: Callable[[tuple[Shard, ...]], ResumedRecord] | None = None
    restore: PsRestore = PsRestore.REDO
    accumulates: bool = False
    add_up: AddUp = lambda metrics, results: b"".join(results)
    result_size: ResultSize = lambda metrics: None
