"""How far a group has come with the steps of its current view, and how fast it makes them, by what any of its members says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Progress
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import View, ViewId
from elasticdl.master.core.events import Announce
from elasticdl.master.core.witnesses import Times, stall_limit

PACES = 15
"""Recent steps whose seconds are kept."""
EXPORT_LIMITS = 10
"""How many times longer than another piece of work the writing of the result may take without progress: large models, slow volumes."""


@dataclass(frozen=True, slots=True)
class Common:
    """How far the members of a view have come together, by what any of them says.

    Attributes:
        view: the view.
        step: the step under way.
        begun_at: when that was first said.
        alive_at: after this time every member has contributed to a step.
    """

    view: ViewId
    step: int
    begun_at: float
    alive_at: float


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Steps:
    """Steps of a group.

    Attributes:
        common: how far the current view has come, None before anybody has said it.
        progress: the last one heard.
        progress_at: when.
        paces: seconds of recent steps.
    """

    common: Common | None = None
    progress: Progress | None = None
    progress_at: float = 0.0
    paces: tuple[float, ...] = ()

    @property
    def alive_at(self) -> float:
        """Return after which time every member has contributed to a step: each step needs a contribution of every member."""
        return -math.inf if self.common is None else self.common.alive_at

    def limit(self, view: View, times: Times) -> float:
        """Return for how many seconds a member at work may make no progress: when it writes the result, ten times as long."""
        return (EXPORT_LIMITS if view.final else 1) * stall_limit(self.paces, times)

    def under_way(self, at: float, view: View | None, said: int, step: int) -> Steps:
        """Return what holds when somebody says which step is under way in a view; `view`: the current one."""
        common = self.common
        if view is None or said != view.id:
            return self
        if common is None or common.view != view.id:
            return replace(self, common=Common(view.id, step, at, -math.inf))
        if step <= common.step:
            return self
        # The step before this one is committed, so everybody contributed to it, after it had been begun.
        return replace(self, common=Common(view.id, step, at, common.begun_at))

    def is_news(self, view: View, progress: Progress) -> bool:
        """Tell whether the current view has a state of its own that is not older than the last one heard."""
        before = self.progress
        is_older = (
            before is not None
            and progress.state.step < before.state.step
            and progress.current == before.current
        )
        # a healee holds the base
        return not is_older and progress.state.view == view.id and progress.state.step > view.base.step

    def committed(self, now: float, worker: str, progress: Progress) -> tuple[Steps, Announce]:
        """Return what holds when a step is committed, and what people hear of it."""
        before, step = self.progress, progress.state.step
        paces = self.paces
        if before is not None and step > before.state.step and progress.current == before.current:
            # a worker tells only some of the steps that follow each other at once
            paces = (*paces, (now - self.progress_at) / (step - before.state.step))[-PACES:]
        loss = "" if progress.loss is None else f", loss {progress.loss:z.4g}"
        said = Announce(EventKind.STEP, worker, progress.current, step, f"step {step}{loss}")
        return replace(self, progress=progress, progress_at=now, paces=paces), said
