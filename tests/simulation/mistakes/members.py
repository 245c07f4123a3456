"""Mistakes of members, of rings, and of the auditor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Evicted,
    ProgramFailed,
)
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.master.allreduce import views
from elasticdl.master.allreduce.kills import Kills
from elasticdl.master.allreduce.liveness import Liveness
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.seen import Link, Seen
from elasticdl.master.allreduce.viewchange import ViewChange
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core import events as to_master
from elasticdl.master.core.machine import MasterCore
from elasticdl.worker import events as to_member
from elasticdl.worker.allreduce.accumulator import Accumulator
from elasticdl.worker.allreduce.machine import Member
from tests.simulation.mistakes.mistaken import Mistaken
from tests.simulation.oracle import Chunk, History, Lineage
from tests.simulation.processes import Ring, Worker


class NoSeal(Mistaken):
    """A member that has reported to next_view may still commit in the old view."""

    class member_class(Member):
        __slots__ = ()

        def _may_commit_in(self, view: ViewId) -> bool:
            return self.failure is None and view == self.current

        def _proceed(self, out: Any) -> Member:
            member = Member._proceed(self, out)
            if (
                member.result is not None
                and member.failure is None
                and member.outstanding.work is None
                and not member.active
            ):
                member = member._try_commit(out)
            return member

    def _cancel_work(self, worker: Worker) -> None:
        if worker.token is None or not isinstance(worker.token.work, to_member.Contribute):
            super()._cancel_work(worker)


class NoFloor(Mistaken):
    """A member accepts any view newer than the one that it is in, although it has sealed beyond it."""

    late_views = 0.4

    class member_class(Member):
        __slots__ = ()

        def _may_install(self, view: View) -> bool:
            return view.rank(self.id) is not None and view.id > self.current

        def _install(self, view: View, out: Any) -> Member:
            return replace(Member._install(self, view, out), sealed=ViewId(view.id - 1))

    def carry_out(self, worker: Worker, instruction: Any) -> None:
        if isinstance(instruction, to_member.OpenView):
            worker.closed = min(worker.closed, instruction.view.id - 1)
        super().carry_out(worker, instruction)


class KeepAccumulator(Mistaken):
    """Lanes are rebalanced in the middle of a step and members do not check what their accumulator contains."""

    class member_class(Member):
        __slots__ = ()

        def _keeps_accumulator(self, view: View, rank: int) -> bool:
            del rank
            return self.state == view.base

        def _may_contribute(self, view: View) -> bool:
            return self.whole or Member._may_contribute(self, view)

    class Rotates(ViewChange):
        __slots__ = ()

        def compose(self, situation: views.Situation) -> View:
            with mock.patch.object(views, "place_lanes", _rotate):
                return ViewChange.compose(self, situation)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, view_change=self.Rotates())


def _rotate(
    members: Sequence[Stander], base: StateId, lanes: int, before: Sequence[int | None]
) -> tuple[int, ...]:
    del base, before
    return tuple((lane + 1) % len(members) for lane in range(lanes))


class StaleAccumulator(Mistaken):
    """The accumulator of a step is kept by a member that healed to another state."""

    class member_class(Member):
        __slots__ = ()

        def _keeps_accumulator(self, view: View, rank: int) -> bool:
            return self.state != view.base or Member._keeps_accumulator(self, view, rank)

        def _healed(self, event: to_member.Healed, out: Any) -> Member:
            chunks = self.accumulator.chunks
            return replace(Member._healed(self, event, out), accumulator=Accumulator(chunks))

    def keeps_gradients_over_heal(self) -> bool:
        return True


class RetryInView(Mistaken):
    """An abort without a death is retried in the same view."""

    class member_class(Member):
        __slots__ = ()

        def _break_ring(self, accused: MemberId | None, how: str, out: Any) -> Member:
            del accused, how, out
            return replace(self, contributed=False, result=None)

    def _contribute(self, worker: Worker, work: to_member.Contribute) -> None:
        ring = self.rings.get((work.view, work.step))
        if ring is not None and worker.id in ring.parts:
            # what the others had given was read by the attempt that broke; who still waits in it has it in its buffers
            waiting = {member for member, (_, token) in ring.waiting.items() if not token.done}
            ring.parts = {member: part for member, part in ring.parts.items() if member in waiting}
        super()._contribute(worker, work)


class DonorGoesOn(Mistaken):
    """The donor applies the next step while it still sends its state."""

    class member_class(Member):
        __slots__ = ()

        def _serves(self) -> bool:
            return False


class KeepStateAfterEviction(Mistaken):
    """An evicted member comes back with its state."""

    class member_class(Member):
        __slots__ = ()

        def _obey(self, verdict: Any, out: Any) -> Member:
            return self if isinstance(verdict, Evicted) else Member._obey(self, verdict, out)

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _verdict(self, link: Link) -> Any:
            verdict = AllReduceMaster._verdict(self, link)
            return None if isinstance(verdict, Evicted) else verdict

    class JoinsAgain(Liveness):
        def candidates(self) -> Iterator[Seen]:
            return iter(self.seen.values())

        def may_join(self, core: MasterCore, seen: Seen) -> bool:
            view, member = core.journal.view, seen.peer.id
            stood = view is not None and view.rank(member) is None and member in core.journal.known
            return stood or Liveness.may_join(self, core, seen)

    class Spares(Kills):
        __slots__ = ()

        def overdue(self, now: float, alone: float) -> tuple[Kills, Sequence[to_master.Kill]]:
            del now, alone
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, liveness=self.JoinsAgain(), kills=self.Spares())


class AbortIsFailure(Mistaken):
    """A member takes the exception of a broken ring for a program error."""

    class member_class(Member):
        __slots__ = ()

        def _break_ring(self, accused: MemberId | None, how: str, out: Any) -> Member:
            del accused
            return self._fail(ProgramFailed("program", f"RingBroken {how}", "", "Traceback"), out)


# ------------------------------------------------------------------ rings and the auditor


class RingOfTheLiving(Mistaken):
    """The ring closes over the members still connected instead of all members of the view."""

    class member_class(Member):
        __slots__ = ()

        def _try_commit(self, out: Any) -> Member:
            if self.result is None or self.position is None:
                return Member._try_commit(self, out)
            complete = replace(self.result, contributors=(1,) * self.position.lanes)
            return Member._try_commit(replace(self, result=complete), out)

    def is_full(self, ring: Ring) -> bool:
        return all(peer.id in ring.parts or self.has_left(peer.id, ring.view) for peer in ring.view.members)


class AuditByCommitters(Mistaken):
    """Audit lines are written by a member when it has committed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.writers: dict[tuple[int, int], set[str]] = {}
        lines = self.oracle.audited_lines

        def audited(view: int, step: int) -> dict[str, tuple[Chunk, ...]]:
            writers = self.writers.get((view, step), set())
            return {name: chunks for name, chunks in lines(view, step).items() if name in writers}

        self.oracle.audited_lines = audited  # type: ignore[method-assign]

    def _commit(self, worker: Worker, work: to_member.Commit) -> None:
        self.writers.setdefault((work.view, work.state.step), set()).add(worker.name)
        super()._commit(worker, work)


class AuditHealed(AuditByCommitters):
    """... and also when it heals past a step that it contributed to."""

    def healed(
        self, worker: Worker, work: to_member.Heal, content: Lineage, history: History
    ) -> to_member.Healed:
        for step in range(1, len(content)):
            self.writers.setdefault((content[step], step), set()).add(worker.name)
        return super().healed(worker, work, content, history)


class AuditAll(Mistaken):
    """The auditor also counts steps beyond the one of the `finished` record."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.oracle.audited_steps = lambda _: range(1, max(self.oracle.commits, default=0) + 1)  # type: ignore[method-assign]
