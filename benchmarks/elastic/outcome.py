"""What was found of one way of an experiment: how long it took, how much of the cluster was used, and where the rest was.

What counts as used is the time of chunks that the audit finds in committed steps, by the workers' own clocks, and that in which pods of a
service ran: start-up, waiting for others and the cost of steps do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.elastic.cluster import UNITS
from benchmarks.elastic.holding import SERVICE, Life, held
from benchmarks.elastic.jobs import Chunk, Job

USED = "used"
AGAIN = "computed, and in no committed step"
STEPS = "between two chunks: the cost of steps"
PAUSES = "between two chunks: longer than a chunk"
STARTS = "from a node to the first chunk"
ENDS = "from the last chunk to the pod's end"
SERVICE_STARTS = "the service's pods, from a node to running"
FREE = "with no pod, before the tail"
TAIL = "with no pod, in the tail: after the last moment when all units had one"
Place = str
"""Where a unit was at a moment: one of the words above."""
Stretch = tuple[Place, float, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way of an experiment; times in seconds since the beginning.

    Attributes:
        way: its name.
        begin: of what is looked at.
        end: of what is looked at.
        jobs: all of them.
        lives: pods that wanted a unit.
        idle: share of the machine's processors that nobody used meanwhile.
    """

    way: str
    begin: float
    end: float
    jobs: tuple[Job, ...]
    lives: tuple[Life, ...]
    idle: float
    spent: dict[Place, float] = field(init=False)
    """Unit-seconds by place; they add up to all that there are."""

    def __post_init__(self) -> None:
        spent = dict.fromkeys(
            (USED, AGAIN, STEPS, PAUSES, STARTS, ENDS, SERVICE_STARTS, FREE, TAIL), 0.0
        )  # fmt: skip
        for place, begin, end in (*self._stretches(), *self._free()):
            spent[place] += max(0.0, min(end, self.end) - max(begin, self.begin))
        object.__setattr__(self, "spent", spent)

    @property
    def makespan(self) -> float:
        """Return the time from the first submission to the last end."""
        return self.end - self.begin

    @property
    def used(self) -> float:
        """Return the share of all unit-seconds that were used."""
        return self.share(USED)

    def share(self, place: Place) -> float:
        """Return the share of all unit-seconds that were at a place."""
        return self.spent[place] / (UNITS * self.makespan)

    @property
    def service(self) -> list[Life]:
        """Return the service's pods."""
        return [life for life in self.lives if life.owner == SERVICE]

    def _stretches(self) -> Iterator[Stretch]:
        """Yield what each unit that a pod held was used for."""
        computed: dict[tuple[str, str], list[Chunk]] = {}
        for job in self.jobs:
            for chunk in sorted(job.chunks, key=lambda chunk: chunk.begin):
                computed.setdefault((job.name, chunk.worker), []).append(chunk)
        for life in self.lives:
            if life.placed is None:
                continue
            ended = self.end if life.ended is None else life.ended
            if life.owner == SERVICE:
                running = ended if life.running is None else life.running
                yield SERVICE_STARTS, life.placed, running
                yield USED, running, ended
                continue
            chunks = computed.get((life.owner, life.process), [])
            if not chunks:
                yield STARTS, life.placed, ended
                continue
            yield STARTS, life.placed, chunks[0].begin
            yield from _between(chunks)
            yield ENDS, chunks[-1].end, ended

    def _free(self) -> Iterator[Stretch]:
        """Yield the time of units that no pod held."""
        curve = [*held(self.lives), (self.end, 0)]
        full = max((at for (_, units), (at, _) in pairwise(curve) if units == UNITS), default=self.begin)
        for (begin, units), (end, _) in pairwise(curve):
            place = TAIL if begin >= full else FREE
            for _ in range(UNITS - units):
                yield place, begin, end


def _between(chunks: list[Chunk]) -> Iterator[Stretch]:
    """Yield what a worker did from the begin of its first chunk to the end of its last one."""
    for chunk in chunks:
        yield USED if chunk.counts else AGAIN, chunk.begin, chunk.end
    for before, after in pairwise(chunks):
        # A step costs much less than a chunk; what lasts longer is a wait for a new view, or for others that compute for it.
        is_pause = after.begin - before.end > before.end - before.begin
        yield PAUSES if is_pause else STEPS, before.end, after.begin
