"""What is asked of a master, an early end and other numbers of processes, until it is journalled; and who waits for an answer.

Clients wait for theirs, and have it when the record is durable, or when it can't be written for a while. Members ask once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind, how_many
from elasticdl.master.core.events import NOBODY, Announce, Instruction, Reply, Scale, ScaleAsked
from elasticdl.master.core.records import Journal, StoppingRecord, WantedRecord


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that are not answered yet.

    Attributes:
        stop: reason of a stop request that is not journalled yet.
        waiting: client requests to answer when `stopping` is journalled.
        scale: the numbers of workers and servers asked for, and by which request.
    """

    stop: str | None = None
    waiting: tuple[int, ...] = ()
    scale: ScaleAsked | None = None

    # ------------------------------------------------------------------ what comes in

    def with_stop(self, journal: Journal, request: int, reason: str) -> tuple[Requests, list[Reply]]:
        """Return what holds when a client asks for an early end; the answer follows the record (D7)."""
        if journal.terminal is not None:
            return self, [Reply(request, "the job has ended")]
        if journal.stopping is not None:
            return self, [Reply(request, "the job is stopping")]
        return replace(self, stop=self.stop or reason, waiting=(*self.waiting, request)), []

    def with_wish(self, reason: str) -> Requests:
        """Return what holds when a member asks for an early end."""
        return replace(self, stop=self.stop or reason)

    def with_scale(self, journal: Journal, asked: ScaleAsked) -> tuple[Requests, list[Reply]]:
        """Return what holds when a client asks for other numbers; the last ones count."""
        if journal.terminal is not None or journal.stopping is not None:
            return self, [Reply(asked.request, "the job is ending; no number is changed any more")]
        before = self.scale
        said = [] if before is None else [Reply(before.request, "another number was asked for meanwhile")]
        return replace(self, scale=asked), said

    # ------------------------------------------------------------------ records

    def stop_record(self, journal: Journal) -> StoppingRecord | None:
        """D7: an early end is a record first; the acknowledgement follows."""
        return None if self.stop is None or journal.stopping is not None else StoppingRecord(self.stop)

    def scale_record(self) -> WantedRecord | None:
        """Return the record of the numbers that are asked for."""
        return None if self.scale is None else WantedRecord(self.scale.workers, self.scale.servers)

    def after_stopping(self, reason: str) -> tuple[Requests, list[Instruction]]:
        """Return what holds when an early end is journalled, and who hears of it."""
        text = f"the job ends at the next step boundary: {reason}"
        replies = (Reply(request, "the job ends at the next step boundary") for request in self.waiting)
        return replace(self, stop=None, waiting=()), [Announce(EventKind.STOPPING, "", 0, 0, text), *replies]

    def after_scale(self, record: WantedRecord) -> tuple[Requests, list[Instruction]]:
        """Return what holds when other numbers are journalled, and what is done about them."""
        done: list[Instruction] = [Scale(record.workers, record.servers)]
        asked = self.scale
        if asked is None or (asked.workers, asked.servers) != (record.workers, record.servers):
            return self, done
        done.append(Reply(asked.request, f"the job wants {how_many(record.workers, record.servers)}"))
        return replace(self, scale=None), done

    # ------------------------------------------------------------------ without a record

    def scale_put_off(self, why: str) -> tuple[Requests, list[Reply]]:
        """Answer who has asked for other numbers: they are in force when the journal can be written again."""
        asked = self.scale
        if asked is None or asked.request == NOBODY:
            return self, []
        reply = Reply(asked.request, f"{why}; the job adapts when it can be written again")
        return replace(self, scale=replace(asked, request=NOBODY)), [reply]

    def stop_answered(self, text: str) -> tuple[Requests, Sequence[Reply]]:
        """Answer who waits for an early end."""
        return replace(self, waiting=()), [Reply(request, text) for request in self.waiting]

    def ended(self) -> tuple[Requests, list[Reply]]:
        """Answer all: the job has ended, and nothing that was asked for is done any more."""
        waiting = (*self.waiting, *(() if self.scale is None else (self.scale.request,)))
        said = [Reply(request, "the job has ended") for request in waiting]
        return replace(self, stop=None, waiting=(), scale=None), said
