"""How a state comes to a member: made anew, read from a checkpoint, or sent by a member that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, MemberId, ViewId
from elasticdl.worker import events as to_member
from tests.simulation.oracle import History, Lineage, Violation
from tests.simulation.processes import Token, Worker

if TYPE_CHECKING:
    from tests.simulation.world import World


class Transfers:
    """The transfers of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.waiting: list[tuple[Worker, Token]] = []

    def heal(self, worker: Worker, work: to_member.Heal) -> None:
        """Begin to bring a state to a member."""
        if worker.heal is not None:
            raise Violation(f"{worker.name} gets {work} while {worker.heal.work} is under way")
        token = worker.heal = Token(work)
        if work.source == INITIAL:
            self._world.come_back(
                worker,
                token,
                self._world.delay("file"),
                "has made the weights",
                lambda: self._world.healed(worker, work, (work.state.view,), ()),
            )
        elif work.source == SNAPSHOT:
            assert work.path is not None
            content, history = self._world.saved(work.path)
            self._world.come_back(
                worker,
                token,
                self._world.delay("file"),
                "has loaded the snapshot",
                lambda: self._world.healed(worker, work, content, history),
            )
        else:
            donor = self._world.by_id[MemberId(work.source)]
            self.waiting = [entry for entry in self.waiting if not entry[1].done]
            self.waiting.append((worker, token))
            if not donor.lives or donor.closed >= work.view:
                self.fail(worker, token)
            else:
                self.start(donor)

    def fail(self, worker: Worker, token: Token) -> None:
        work = token.work
        self._world.come_back(
            worker,
            token,
            self._world.delay("message"),
            "transfer breaks",
            lambda: to_member.HealFailed(work.view, "eof"),
        )

    def start(self, donor: Worker) -> None:
        if donor.serving is None:
            return
        for healee, token in self.waiting:
            work = token.work
            if (
                token.done
                or token.scheduled
                or work.source != donor.id
                or (work.view, work.state) != donor.serving[:2]
            ):
                continue
            content, history = donor.lineage, donor.serving[3]
            self._world.come_back(
                healee, token, self._world.delay("transfer"), f"has the state of {donor.name}",
                lambda h=healee, w=work, c=content, p=history: self._transferred(h, w, donor, c, p),
            )  # fmt: skip

    def _transferred(
        self,
        healee: Worker,
        work: to_member.Heal,
        donor: Worker,
        content: Lineage | None,
        history: History,
    ) -> Any:
        if healee.closed >= work.view and content is not None:
            return self._world.healed(
                healee, work, content, history
            )  # the last byte was faster than the seal
        if donor.serving is None or donor.serving[0] != work.view or not donor.lives:
            return to_member.HealFailed(work.view, "eof")
        if content != donor.lineage or content is None:
            raise Violation(f"a transfer from {donor.name} to {healee.name} mixed two states")
        self.tell_donor(donor, work.view, healee.id, acknowledged=True)
        return self._world.healed(healee, work, content, history)

    def tell_donor(self, donor: Worker, view_id: ViewId, healee: MemberId, acknowledged: bool) -> None:
        event = to_member.HealeeLeft(view_id, healee, acknowledged)
        self._world.after(
            self._world.delay("message"),
            f"{donor.name} is free of {healee}",
            lambda: self._world.feed(donor, event),
        )
