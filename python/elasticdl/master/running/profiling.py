"""Whose steps are recorded, and for whom: one request at a time.

Decisions only; messages to workers are returned, and the runner sends them. Nothing of it is in the journal: with its master a request is
gone, and the next master ignores what workers still record for it.
"""

from __future__ import annotations

from elasticdl.cluster.cluster import Role, process_name
from elasticdl.control.protocol.profiling import (
    MOST_STEPS,
    Missing,
    Recorded,
    RecordSteps,
    Refused,
    StepRecorded,
)
from elasticdl.control.transport.stream import ProfileWanted


class Profiling:
    """The connected workers, and what each still has to record."""

    def __init__(self, *, trains: bool) -> None:
        """Begin with nobody; a job that does not train has no steps."""
        self._trains = trains
        self._workers: dict[int, str] = {}
        self._wanted: ProfileWanted | None = None
        self._recorded: dict[int, int] = {}
        """Steps that have come, of the connections from which some are still awaited."""

    def opened(self, connection: int, process: str) -> None:
        """Learn of a member's connection."""
        if process_name(process).role is Role.WORKER:
            self._workers[connection] = process

    def closed(self, connection: int) -> None:
        """Await nothing more from a connection."""
        self._give_up(connection, "it ended")
        self._workers.pop(connection, None)

    def begin(self, wanted: ProfileWanted) -> list[tuple[int, RecordSteps]]:
        """Return whom to send what for a request; one that is refused ends at once, with the reason."""
        if why := self._objection(wanted.steps):
            wanted.tell(Refused(why))
            wanted.tell(None)
            return []
        self._wanted = wanted
        self._recorded = dict.fromkeys(self._workers, 0)
        return [(connection, RecordSteps(wanted.request, wanted.steps)) for connection in self._workers]

    def heard(self, connection: int, step: StepRecorded) -> None:
        """Pass a step on to who asked for it."""
        wanted = self._wanted
        if wanted is None or wanted.request != step.request or connection not in self._recorded:
            return
        wanted.tell(Recorded(self._workers[connection], step))
        self._recorded[connection] += 1
        if self._recorded[connection] == wanted.steps:
            del self._recorded[connection]
        self._end_if_done()

    def left(self, request: int) -> None:
        """Forget a request: nobody waits for it any more."""
        if self._wanted is not None and self._wanted.request == request:
            self._wanted = None
            self._recorded.clear()

    def end(self) -> None:
        """Give up what has not come: the job has ended."""
        for connection in [*self._recorded]:
            self._give_up(connection, "the job ended")

    def _objection(self, steps: int) -> str:
        if not 1 <= steps <= MOST_STEPS:
            return f"--steps is between 1 and {MOST_STEPS}; received {steps}"
        if not self._trains:
            return "only jobs that train have steps; this one evaluates or predicts"
        if self._wanted is not None:
            return "the job is being profiled already; ask again when that has ended"
        if not self._workers:
            return "no worker is connected to the job's master; ask again when the job trains"
        return ""

    def _give_up(self, connection: int, why: str) -> None:
        recorded = self._recorded.pop(connection, None)
        if recorded is None:
            return
        assert self._wanted is not None, "steps are awaited only for a request"
        name = self._workers[connection]
        self._wanted.tell(
            Missing(f"{name} has recorded {recorded} of {self._wanted.steps} steps, then {why}")
        )
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._wanted is not None and not self._recorded:
            self._wanted.tell(None)
            self._wanted = None
