"""Which task an asynchronous worker computes next, and which are done. Pure: no I/O, no clock.

Tasks are numbered through all epochs, in the ledger's order. What is done is journalled, all else may be forgotten at any moment: a task
that is leased twice costs time, and nothing else, because servers know each chunk (rule R2). Rule numbers are those of the protocol page.

Where servers sum up the gradients of a wave's tasks (A1) no step is made before each of these has had its turn: so whatever of the first
wave is nobody's is given to somebody at once, however much that worker has already (A5).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.data.plan.waves import Waves
from elasticdl.master.core.done import FIRST, Done, TaskNumber

WINDOW = 1024
"""No task is leased further than this from the first that is not done (R21): servers remember the chunks of all tasks between."""
HELD = 2
"""Tasks that a worker holds at most: one that it computes, and the next; but for those of a wave that others wait for."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A task that a worker computes.

    Attributes:
        task: its number.
        chunk: the first chunk that is not known to be settled: its next owner begins there.
        roll_back: the roll-back that it was leased in; what is reported of an earlier one does not count (R22).
    """

    task: TaskNumber
    chunk: int
    roll_back: int


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Leases:
    """All tasks of a job.

    Attributes:
        total: how many there are in all epochs.
        done: which are done, as the journal has it.
        roll_back: how often the job was rolled back.
        held: what each worker holds, by task.
        returned: tasks that were begun and are nobody's now → where they go on.
        following: the first that was never leased.
        inherited: masters before this one may have leased tasks before this one, in the same roll-back; none after it.
        waves: whose gradients make steps together; None: each is applied by itself.
        until: the next barrier: no task from it on is leased before the evaluation there (B1); None: there is none any more.
    """

    total: int
    done: Done = field(default_factory=Done)
    roll_back: int = 0
    held: Mapping[str, tuple[Lease, ...]] = field(default_factory=dict)
    returned: Mapping[TaskNumber, int] = field(default_factory=dict)
    following: TaskNumber = FIRST
    inherited: TaskNumber = FIRST
    waves: Waves | None = None
    until: TaskNumber | None = None

    def after_a_restart(self) -> Leases:
        """Return what holds when masters before this one have leased tasks, and nobody has said which: at most those that they could."""
        if self.is_over:
            return self
        end = self.low + WINDOW + 1
        if self.waves is not None:
            end = self.waves.tasks(self.low).stop
            end = self.waves.tasks(end).stop if end < self.total else end
        return replace(self, inherited=TaskNumber(min(end, self._end)))

    @property
    def _end(self) -> int:
        """Return the first task that is not leased for now, however many there are room for."""
        return self.total if self.until is None else min(self.total, self.until)

    @property
    def low(self) -> TaskNumber:
        """Return the first task that is not done: servers forget what was before it (R10)."""
        return self.done.low

    @property
    def is_over(self) -> bool:
        """Tell whether all tasks are done."""
        return self.done.low >= self.total

    def lease(self, worker: str, reported: Collection[TaskNumber] = ()) -> tuple[Leases, Lease | None, str]:
        """Return a task for a worker, and why none if there is none; what is reported as done is computed no more."""
        mine = self.held.get(worker, ())
        if not self.has_room(worker, reported):
            return self, None, f"{worker} holds {HELD} tasks"
        if self.returned:
            task = min(self.returned)
            lease = Lease(task, self.returned[task], self.roll_back)
            returned = {other: chunk for other, chunk in self.returned.items() if other != task}
            after = replace(self, returned=returned)
        else:
            task, taken = self.following, self.taken
            while task in self.done or task in taken:
                task = TaskNumber(task + 1)
            if task >= self.total:
                return self, None, "all tasks are done or held"
            if task >= self._end:
                return self, None, f"the model is evaluated before task {task}"
            if task > self.low + WINDOW:
                return self, None, f"task {self.low} is not done, and it is {WINDOW} tasks ago"
            lease = Lease(task, 0, self.roll_back)
            after = replace(self, following=TaskNumber(task + 1))
        return after._with(worker, (*mine, lease)), lease, ""

    def has_room(self, worker: str, reported: Collection[TaskNumber] = ()) -> bool:
        """Tell whether a worker may hold a task more."""
        mine = self.held.get(worker, ())
        # asked of every worker after every event
        return len(mine) < HELD or (
            bool(reported) and sum(lease.task not in reported for lease in mine) < HELD
        )

    def dealt(
        self, workers: Sequence[str], reported: Collection[TaskNumber] = (), *, holds_back: bool = False
    ) -> Leases:
        """Return what holds when each of those at work has as many tasks as it may.

        Args:
            workers: those at work.
            reported: tasks that are done, which the journal does not say yet.
            holds_back: with waves, none is begun of which nothing is done or under way.
        """
        if self.waves is not None:
            return self._dealt_in_waves(self.waves, workers, holds_back)
        leases = self
        for worker in workers:
            while leases.has_room(worker, reported):
                leases, lease, _ = leases.lease(worker, reported)
                if lease is None:
                    return leases  # there is no task, for nobody
        return leases

    def _dealt_in_waves(self, waves: Waves, workers: Sequence[str], holds_back: bool) -> Leases:
        if self.is_over or not workers:
            return self
        leases, end = self, min(self._end, self._fresh(waves)) if holds_back else self._end
        first = waves.tasks(self.low)
        second = waves.tasks(first.stop) if first.stop < self.total else range(0)
        taken = self.taken
        for wave in (first, second):
            for task in wave:
                if task >= end or task in taken or task in self.done:
                    continue
                able = [one for one in workers if wave is first or len(leases.held.get(one, ())) < HELD]
                if not able:
                    break
                worker = min(able, key=lambda one: leases._load(one, wave))
                lease = Lease(TaskNumber(task), self.returned.get(TaskNumber(task), 0), self.roll_back)
                leases = leases._with(worker, (*leases.held.get(worker, ()), lease))
            if wave is first:
                leases = leases._evened(wave, workers)
        if leases is self:
            return self
        taken = leases.taken
        returned = {task: chunk for task, chunk in self.returned.items() if task not in taken}
        return replace(leases, returned=returned)

    def _evened(self, wave: range, workers: Sequence[str]) -> Leases:
        """Return what holds when nobody has two tasks of a wave more than another: who has joined takes over those that are least far."""
        most = max(workers, key=lambda one: self._load(one, wave)[0])
        least = min(workers, key=lambda one: self._load(one, wave)[0])
        if self._load(most, wave)[0] - self._load(least, wave)[0] < 2:
            return self
        theirs = self.held.get(least, ())
        known = {lease.task for lease in theirs}
        mine = [lease for lease in self.held[most] if lease.task in wave and lease.task not in known]
        given = min(mine, key=lambda lease: (lease.chunk, -lease.task))
        kept = tuple(lease for lease in self.held[most] if lease is not given)
        return self._with(most, kept)._with(least, (*theirs, given))._evened(wave, workers)

    def _load(self, worker: str, wave: range) -> tuple[int, int]:
        """Return how many tasks of a wave a worker holds, and how many in all."""
        mine = self.held.get(worker, ())
        return sum(lease.task in wave for lease in mine), len(mine)

    @property
    def is_between_waves(self) -> bool:
        """Tell whether all tasks that are begun are done, and their waves complete: no slot holds a part of a step then (A6)."""
        return self.waves is not None and self._fresh(self.waves) == self.low

    def _fresh(self, waves: Waves) -> int:
        """Return the first task behind all waves of which something is done or begun."""
        begun = (*self.done.above, *self.begun())
        if not begun and (self.is_over or waves.tasks(self.low).start == self.low):
            return self.low
        return waves.tasks(max((self.low, *begun))).stop

    def taken_up(self, worker: str, tasks: Mapping[TaskNumber, int]) -> Leases:
        """Return what holds when a worker says what it computes: this, and nothing else; what somebody else has is left to both."""
        before = self.released(worker)
        mine = tuple(
            Lease(task, chunk, self.roll_back) for task, chunk in tasks.items() if task not in self.done
        )
        names = {lease.task for lease in mine}
        returned = {task: chunk for task, chunk in before.returned.items() if task not in names}
        return replace(before, returned=returned)._with(worker, mine)

    def progress(self, worker: str, task: TaskNumber, chunk: int, roll_back: int) -> Leases:
        """Take note that all chunks of a task before this one are settled."""
        if roll_back != self.roll_back:
            return self
        mine = tuple(
            replace(lease, chunk=max(chunk, lease.chunk)) if lease.task == task else lease
            for lease in self.held.get(worker, ())
        )
        return self._with(worker, mine)

    def finished(self, task: TaskNumber) -> Leases:
        """Return what holds once the journal says that a task is done, or skipped as poisoned."""
        held = {
            worker: kept
            for worker, leases in self.held.items()
            if (kept := tuple(lease for lease in leases if lease.task != task))
        }
        returned = {other: chunk for other, chunk in self.returned.items() if other != task}
        return replace(self, done=self.done.with_task(task), held=held, returned=returned)

    def released(self, worker: str) -> Leases:
        """Return what holds when a worker is gone, or gives its tasks back: others go on where it was."""
        held = {other: leases for other, leases in self.held.items() if other != worker}
        others = {lease.task for leases in held.values() for lease in leases}
        mine = {lease.task: lease.chunk for lease in self.held.get(worker, ()) if lease.task not in others}
        return replace(self, held=held, returned={**self.returned, **mine})

    def rolled_back(self, position: Done, until: TaskNumber | None = None) -> Leases:
        """Return what holds after a roll-back to a snapshot: only what was done when it began still is, and no lease is (R24)."""
        done = self.done.common(position)
        return Leases(self.total, done, self.roll_back + 1, following=done.low, waves=self.waves, until=until)

    def holders(self) -> Collection[str]:
        """Return the workers that hold something."""
        return self.held.keys()

    def was_leased(self, task: TaskNumber) -> bool:
        """Tell whether a task was leased since the last roll-back, as far as this master knows: nothing that was is forgotten (R21)."""
        held = (lease.task for leases in self.held.values() for lease in leases)
        return task in self.returned or task in self.done or task in held

    def begun(self) -> Mapping[TaskNumber, int]:
        """Return the tasks that are begun and not done, with the chunks of each that are settled."""
        found = dict(self.returned)
        for lease in (lease for leases in self.held.values() for lease in leases):
            found[lease.task] = max(lease.chunk, found.get(lease.task, 0))
        return found

    @property
    def taken(self) -> set[TaskNumber]:
        """Return the tasks that somebody holds."""
        return {lease.task for leases in self.held.values() for lease in leases}

    def _with(self, worker: str, leases: tuple[Lease, ...]) -> Leases:
        held = {**self.held, worker: leases}
        if not leases:
            del held[worker]
        return replace(self, held=held)
