"""Mistakes that the simulator must find: one rule is broken, everything else is real.

A mistake in a server is the core's (`ps/server/simulation.rs`), one in a master or a worker is a subclass here. Each has the seed of
a schedule that shows it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticdl.control.protocol.psmessages import TaskDone
from elasticdl.master.core.machine import Out
from elasticdl.master.core.records import Journal
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.snapshots import Snapshots
from elasticdl.master.ps.work import Work
from elasticdl.worker.ps.machine import Flow, PsMember
from tests.simulation.oracle import Violation
from tests.simulation.servers import schedules
from tests.simulation.servers.world import World


def server_that(mistake: str) -> type[World]:
    return type(mistake, (World,), {"server_mistake": mistake})


class OldDone(World):
    """ "Done" of a task that was begun before a roll-back counts (against rule R22)."""

    class master_class(PsMaster):
        def _take_done(self, now: float, connection: int, link: Any, done: TaskDone, out: Out) -> Any:
            late = replace(done, roll_back=self.journal.roll_back)
            return super()._take_done(now, connection, link, late, out)


class LeasedIsDone(World):
    """The watermark passes tasks that are leased (against rule R10)."""

    class Believing(Snapshots):
        def low(self, journal: Journal, work: Work) -> int:
            return work.leases.following

    def new_master(self) -> PsMaster:
        return replace(super().new_master(), snapshots=self.Believing())


class TrustsStreams(World):
    """What is sent to another server counts as accepted (against rule R4)."""

    trusts_streams = True


class EndsAgain(World):
    """A worker ends training each time that it hears of the end."""

    class worker_class(PsMember):
        def _end_training(self, steps: int, *, writes: bool) -> Flow[None]:
            self._ended = False
            return super()._end_training(steps, writes=writes)


class EndsInTimeOnly(World):
    """A worker that hears of the end with the verdict only does not end training."""

    class worker_class(PsMember):
        def _end_late(self) -> Flow[None]:
            yield from ()


class PassesOverHalf(World):
    """A worker passes over a chunk that some of its slots hold (against rule R8)."""

    class worker_class(PsMember):
        def _is_held(self, slots: frozenset[int], held: frozenset[int]) -> bool:
            return bool(slots & held)


MISTAKES: tuple[tuple[type[World], int, str], ...] = (
    (server_that("held early"), 10, "chunk"),
    (server_that("acknowledged early"), 0, "chunk"),
    (server_that("receiver not required"), 38, "chunk"),
    (server_that("no freeze"), 132, "chunk"),
    (server_that("copy without stamps"), 1, "chunk|account"),
    (server_that("takes older epoch"), 3, "chunk"),
    (server_that("refuses newer epoch"), 30, "does not end"),
    (TrustsStreams, 0, "chunk"),
    (OldDone, 53, "chunk"),
    (LeasedIsDone, 0, "tells low"),
    (PassesOverHalf, 9, "chunk"),
    (EndsAgain, 0, "training has ended 2 times"),
    (EndsInTimeOnly, 3, "training has ended 0 times"),
)
"""Each with a seed that shows it, and what is violated."""


def find(mistake: type[World], first: int, count: int) -> tuple[int, Violation] | None:
    """Return the first seed from `first` on with which a mistake shows, and what is violated."""
    for seed in range(first, first + count):
        try:
            schedules.run(seed, mistake)
        except Violation as violation:
            return seed, violation
    return None
