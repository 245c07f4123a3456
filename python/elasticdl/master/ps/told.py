"""Which connections of a job with parameter servers may lack something since all of them last knew what they should.

What each should know is in `news.py`, and what it was sent in its link. Most events are news to the process that they come from, and to
the servers: so with a thousand workers the others are not looked at again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl.control.protocol.messages import TaskLeased
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.ps.ending import Ending
from elasticdl.master.ps.evaluations import Evaluations
from elasticdl.master.ps.leases import Lease
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import Liveness
from elasticdl.master.ps.slots import Slots
from elasticdl.master.ps.snapshots import Snapshots
from elasticdl.master.ps.work import Work


@dataclass(frozen=True, slots=True)
class Told:
    """What was so at one moment: values that are replaced when they change, and so are compared by identity.

    Attributes:
        to_all: from which every process learns something.
        to_some: from which servers do, and workers only what is about themselves.
        links: control streams.
        held: what each worker holds.
        evaluating: what each worker evaluates.
    """

    to_all: tuple[object, ...] = ()
    to_some: tuple[object, ...] = ()
    links: Mapping[int, Link] = field(default_factory=dict)
    held: Mapping[str, tuple[Lease, ...]] = field(default_factory=dict)
    evaluating: Mapping[MemberId, tuple[TaskLeased, ...]] = field(default_factory=dict)

    def is_as(self, before: Told) -> bool:
        """Tell whether nothing has changed since."""
        return (
            _are_same(self.to_all, before.to_all)
            and _are_same(self.to_some, before.to_some)
            and self.links is before.links
            and self.held is before.held
            and self.evaluating is before.evaluating
        )

    def since(self, before: Told, concerned: int | None) -> Mapping[int, Link]:
        """Return the connections that may lack something since `before`; `concerned`: the one that the event came on."""
        if not _are_same(self.to_all, before.to_all):
            return self.links
        return {
            connection: link
            for connection, link in self.links.items()
            if before.links.get(connection) is not link
            or self.held.get(link.name) is not before.held.get(link.name)
            or self.evaluating.get(link.member) is not before.evaluating.get(link.member)
            or connection == concerned
            or link.is_server
        }


def tellable(
    core: MasterCore,
    links: Mapping[int, Link],
    work: Work,
    evaluations: Evaluations,
    liveness: Liveness,
    slots: Slots,
    snapshots: Snapshots,
    ending: Ending,
) -> Told:
    """Return what is so at one moment, of all from which `news.py` takes what processes should know."""
    journal, leases = core.journal, work.leases
    return Told(
        to_all=(
            journal.shards,
            journal.model,
            journal.entries,  # another tuple with each placement, also if only servers have come
            journal.saved,
            journal.evaluated,
            journal.stopping,
            journal.errors,
            journal.terminal,
            snapshots.spoilt,
            leases.done,
            # Where tasks make steps together, what one worker has may be taken from another.
            None if leases.waves is None else leases,
            ending.exporter,
        ),
        to_some=(journal, liveness.seen, core.failures, leases, slots.copies.under_way, work.reported.tasks),
        links=links,
        held=leases.held,
        evaluating=evaluations.leased,
    )


def _are_same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
