"""Which barriers a worker's callbacks have passed, and which they have to pass before anything is trained beyond them (B5). Pure.

Callbacks are not state that anybody can copy. They are what the journal's barriers have made of them, one after the other, so a worker that
joins has them by passing all of these. A roll-back forgets some: then callbacks begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import GateOpen
from elasticdl.control.protocol.psmessages import BarrierPassed
from elasticdl.control.protocol.view import StateId
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.ps.events import PassBarrier


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Passing:
    """The barriers of a job, as far as callbacks of this worker are concerned.

    Attributes:
        follows: a callback follows epochs or evaluations; otherwise there is nothing to pass.
        open: those that the journal says to be passed, in the roll-back that is known, by their states.
        passed: the states of those that callbacks have passed.
        stop: why callbacks ask for the end of training at the last of these, empty if they do not.
    """

    follows: bool = False
    open: tuple[GateOpen, ...] = ()
    passed: tuple[StateId, ...] = ()
    stop: str = ""

    @property
    def is_behind(self) -> bool:
        """Tell whether nothing may be begun, because callbacks have to pass a barrier before."""
        return self.follows and tuple(gate.state for gate in self.open) != self.passed

    def opened(self, gate: GateOpen, roll_back: int) -> Passing:
        """Return what holds when the master says that a barrier is passed; what was so in another roll-back may be forgotten."""
        if not self.follows or gate.barrier is None or gate.barrier.roll_back != roll_back:
            return self
        known = any(one.state == gate.state for one in self.open)
        return self if known else replace(self, open=(*self.open, gate))

    def rolled_back(self) -> Passing:
        """Return what holds after a roll-back: the master says anew which barriers are passed."""
        return replace(self, open=())

    def work(self) -> tuple[PassBarrier, tuple[StateId, ...]]:
        """Return what brings callbacks to the next barrier, and what they have passed then.

        One at a time: a worker that joins late has many to pass, and each is a sign of life.
        """
        before = self.passed
        anew = tuple(gate.state for gate in self.open[: len(before)]) != before
        before = () if anew else before
        following = next(iter(self.open[len(before) :]), None)
        if following is None:
            return PassBarrier(None, anew), before
        return PassBarrier(_logs(following), anew), (*before, following.state)

    def after(self, passed: tuple[StateId, ...], stop: str) -> Passing:
        """Return what holds when callbacks have passed these barriers, and ask for the end at the last of them or not."""
        return replace(self, passed=passed, stop=stop)

    def said(self) -> BarrierPassed | None:
        """Return what the master is to know of it, on each connection: nothing is leased beyond the last barrier before."""
        return BarrierPassed(self.passed[-1], self.stop) if self.passed and not self.is_behind else None


def _logs(gate: GateOpen) -> GateLogs:
    assert gate.barrier is not None, "it is one of a job with parameter servers"
    barrier = gate.barrier
    return GateLogs(gate.state.step, barrier.epoch, gate.values, barrier.epoch_ended, None)
