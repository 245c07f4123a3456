"""The job's data as somebody has found it: the first finding counts, and what is said later has to agree with it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.master.core.events import GiveUp
from elasticdl.master.core.records import ShardsRecord


class LoopSettings(Protocol):
    """What a master takes from the job's settings; those of a custom training loop are not complete without its program's plan."""

    @property
    def for_loop(self) -> Callable[[LoopPlan], Any] | None:
        """Return what completes them; None with model files."""

    @property
    def processes(self) -> bool:
        """Tell whether the program processes tasks."""


AnySettings = TypeVar("AnySettings", bound=LoopSettings)


def with_plan(settings: AnySettings, plan: LoopPlan | None) -> AnySettings:
    """Return the settings of a job whose program has said this of its data; with model files they stay as they are."""
    if plan is None or settings.for_loop is None:
        return settings
    completed: AnySettings = settings.for_loop(plan)
    return completed


def wrong_plan(settings: LoopSettings, plan: LoopPlan | None) -> str | None:
    """Return why a job of these settings has no such data, None if it may."""
    if plan is not None and settings.for_loop is None:
        return "a job with a model file has no plan of a custom training loop"
    if plan is None and settings.for_loop is not None:
        return "a custom training loop has a plan of its data"
    return None


def disagreement(
    settings: LoopSettings, first: ShardsRecord, found: ShardsRecord, worker: str
) -> GiveUp | None:
    """Return how a job ends whose program says something else of its data in another worker; None if it does not.

    That worker would train on other batches than it is given. Readers of model files may find different things: the first one counts.
    """
    if first.plan is None or found.plan is None or (first.plan, first.shards) == (found.plan, found.shards):
        return None
    batch = "records per task" if settings.processes else "batch size"
    differences = first.plan.differences(found.plan, batch) or "other files, or other records in them"
    reason = (
        f"{worker}: the program says something else of its data than in the job's first worker: "
        f"{differences}; all workers, restarted ones too, need the same data and the same settings of it"
    )
    return GiveUp(reason, "bad-input", worker)
