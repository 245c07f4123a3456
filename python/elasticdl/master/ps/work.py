"""The tasks of a job with parameter servers: in which order, who computes them, which are done, and how many steps and records that is.

Who may compute which task next is decided in `leases.py`, and when tasks that are done are journalled in `reported.py`; this value keeps
the two, and the figures that follow from them, in step with each other and with the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import Settled, TaskDone
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.barriers import Barriers
from elasticdl.data.plan.tasks import ENDLESS, TaskOrder
from elasticdl.data.plan.waves import Waves
from elasticdl.master.core.done import FIRST, Done, TaskNumber
from elasticdl.master.core.records import MOST_BARRIERS, CutRecord, DoneRecord, Journal
from elasticdl.master.ps.leases import Leases
from elasticdl.master.ps.reported import Reported


@dataclass(frozen=True)  # no slots: see elasticdl.control.protocol.frozen
class Work:
    """What is trained, and what is to be.

    Attributes:
        order: all tasks, None until the shards are journalled.
        leases: who computes which task; its `done` is the journal's.
        reported: tasks that are done, until that is journalled.
        steps: chunks of the tasks that are done; where gradients are summed up, steps of the waves that are.
        records: records of the tasks that are done.
        loss: the last known.
        follows: callbacks follow epochs or evaluations, as workers say: no task beyond a barrier is leased before they have passed it (B5).
        passed: the last barrier that some worker's callbacks have passed without asking for the end.
        ended_by: why callbacks have asked for the end at the last barrier, as some worker says; empty if none has.
    """

    order: TaskOrder | None = None
    leases: Leases = field(default_factory=lambda: Leases(0))
    reported: Reported = field(default_factory=Reported)
    steps: int = 0
    records: int = 0
    loss: float | None = None
    follows: bool = False
    passed: StateId | None = None
    ended_by: str = ""

    def from_journal(
        self, order: TaskOrder, journal: Journal, *, in_waves: bool, is_later_life: bool
    ) -> Work:
        """Return what holds at the place in the data that the journal says.

        Args:
            order: all tasks.
            journal: what is journalled.
            in_waves: servers sum up the gradients of a wave's tasks.
            is_later_life: masters before this one may have leased tasks.
        """
        waves = Waves(order) if in_waves else None
        done, until = journal.done, self._beyond(order, journal)
        leases = Leases(order.total, done, journal.roll_back, following=done.low, waves=waves, until=until)
        leases = leases.after_a_restart() if is_later_life else leases
        return self._at(order, replace(leases, until=self._until(order, journal)))

    def rolled_back(self, position: Done, journal: Journal) -> Work:
        """Return what holds after a roll-back to a snapshot, which the journal says (R24)."""
        assert self.order is not None, "a job that was placed has data"
        # What is trained once more is trained as callbacks are then, which begin anew (B5).
        work = replace(self, reported=Reported(), passed=None, ended_by="")
        return work._at(self.order, self.leases.rolled_back(position, work._until(self.order, journal)))

    def evaluated(self, journal: Journal) -> Work:
        """Return what holds when the journal has the metrics of a barrier: the tasks up to the next one are leased (B1)."""
        assert self.order is not None, "a barrier is one of the job's tasks"
        return replace(self, leases=replace(self.leases, until=self._until(self.order, journal)))

    def following(self, journal: Journal) -> Work:
        """Return what holds when a worker says that its callbacks follow epochs or evaluations."""
        work = self if self.follows else replace(self, follows=True)
        return work if work is self or work.order is None else work.evaluated(journal)

    def has_too_many_barriers(self, journal: Journal) -> bool:
        """Tell whether callbacks have more barriers to pass than the journal keeps, in a job that has an end.

        Those count that are passed already, also if that was in an earlier job, which may have had others.
        """
        if not self.follows or self.order is None or self.order.total >= ENDLESS:
            return False
        count, barrier = len(journal.evaluated), self._beyond(self.order, journal)
        while barrier is not None and count <= MOST_BARRIERS:
            following = self.barriers.following(barrier)
            count, barrier = count + 1, None if following is None else TaskNumber(following)
        return count > MOST_BARRIERS

    def barrier_passed(self, journal: Journal, state: StateId) -> Work:
        """Return what holds when callbacks have passed a barrier without asking for the end: tasks beyond it are leased (B5)."""
        return replace(self, passed=state).evaluated(journal) if self._is_news(journal, state) else self

    def ended(self, journal: Journal, state: StateId, reason: str) -> Work:
        """Return what holds when callbacks have asked for the end at a barrier: no task beyond it is leased.

        No record says so, because every worker repeats it, and a roll-back forgets it with the barrier.
        """
        return replace(self, ended_by=reason) if self._is_news(journal, state) and not self.ended_by else self

    def _is_news(self, journal: Journal, state: StateId) -> bool:
        """Tell whether a word is of the last barrier, and the first one that lets tasks beyond it be leased or not."""
        last = journal.last_barrier
        return last is not None and last.state == state and self.passed != state

    def _until(self, order: TaskOrder, journal: Journal) -> TaskNumber | None:
        """Return the barrier beyond which no task is leased (B1, B5), None if there is none."""
        last = journal.last_barrier
        if last is not None and self.follows and last.state != self.passed and last.task >= journal.done.low:
            return last.task
        return self._beyond(order, journal)

    def _beyond(self, order: TaskOrder, journal: Journal) -> TaskNumber | None:
        """Return the first barrier that the journal does not say to be passed, None if there is none.

        Barriers before what is done were passed. What a checkpoint has beyond one can't be taken away: that one is passed over.
        """
        evaluated = FIRST if journal.last_barrier is None else journal.last_barrier.task
        beyond = () if journal.resumed is None else journal.resumed.position.above
        barrier = Barriers(order, follows=self.follows).following(
            max(evaluated, journal.done.low - 1, 0, *beyond)
        )
        return None if barrier is None else TaskNumber(barrier)

    def _at(self, order: TaskOrder, leases: Leases) -> Work:
        done = leases.done
        return replace(
            self,
            order=order,
            leases=leases,
            steps=_steps(order, leases, done),
            records=order.records_before(done.low) + sum(map(order.records, done.above)),
        )

    # ------------------------------------------------------------------ what comes in

    def settled(self, worker: str, task: TaskNumber, chunk: int, said: Settled | TaskDone) -> Work:
        """Return what holds when a worker says that all chunks of a task before this one are settled."""
        assert self.order is not None, "chunks are those of a task"
        # The task's next owner has to begin at a chunk that there is; that all are settled is for the journal to say.
        within = min(chunk, self.order.chunks(task) - 1)
        leases = self.leases.progress(worker, task, within, said.roll_back)
        return replace(self, leases=leases, loss=self.loss if said.loss is None else said.loss)

    def is_done(self, task: TaskNumber) -> bool:
        """Tell whether a task is done, by the journal or a worker's word."""
        return task in self.leases.done or task in self.reported.tasks

    def journalled(self, record: DoneRecord) -> Work:
        """Return what holds when the journal says that tasks are done."""
        order, leases = self.order, self.leases
        assert order is not None, "tasks are leased once the data is known"
        for task in record.tasks:
            leases = leases.finished(task)
        in_waves = leases.waves is not None
        return replace(
            self,
            leases=leases,
            reported=self.reported.without(record.tasks),
            steps=_steps(order, leases, leases.done)
            if in_waves
            else self.steps + sum(map(order.chunks, record.tasks)),
            records=self.records + sum(map(order.records, record.tasks)),
        )

    def with_done(self, now: float, task: TaskNumber) -> Work:
        """Return what holds when a worker says that a task is done."""
        return replace(self, reported=self.reported.with_task(now, task))

    def wanted_done(self, now: float, journal: Journal) -> DoneRecord | None:
        """Return the record of all tasks that wait for it, once it is due."""
        return self.reported.wanted(now, journal, self.leases)

    def completes_batch(self, journal: Journal) -> bool:
        """Tell whether tasks that are done are journalled at once."""
        return self.reported.completes_batch(journal, self.leases)

    def dealt(self, workers: Sequence[str], *, holds_back: bool) -> Work:
        """Return what holds when each of those at work has as many tasks as it may; `holds_back`: no wave is begun."""
        if self.ended_by:
            return self
        leases = self.leases.dealt(workers, self.reported.tasks, holds_back=holds_back)
        return self if leases is self.leases else replace(self, leases=leases)

    def may_take(self, worker: str) -> bool:
        """Tell whether `dealt` may give a worker a task."""
        return self.leases.waves is not None or self.leases.has_room(worker, self.reported.tasks)

    def taken_up(self, worker: str, tasks: dict[TaskNumber, int]) -> Work:
        """Return what holds when a worker says what it computes: this, and nothing else."""
        return replace(self, leases=self.leases.taken_up(worker, tasks))

    def released(self, worker: str) -> Work:
        """Return what holds when a worker is gone, or gives its tasks back."""
        return replace(self, leases=self.leases.released(worker))

    # ------------------------------------------------------------------ the end

    def ends(self, journal: Journal) -> bool:
        """Tell whether nothing is trained any more."""
        leases = self.leases
        if self.order is None or not journal.entries:
            return False
        is_early = journal.stopping is not None or bool(self.ended_by)
        if leases.is_over and (leases.until is None or is_early):
            return True
        # What is reported is journalled first: the result says how many steps it is of.
        return is_early and not leases.held and not self.reported.tasks

    def at_barrier(self, journal: Journal) -> StateId | None:
        """Return the state that is to be evaluated now: all that is leased is done (B1), so every push is settled (R25); None: none is."""
        leases = self.leases
        if (
            self.order is None
            or not journal.entries
            or leases.until is None
            or leases.low != leases.until
            or self.ended_by
        ):
            return None
        if journal.last_barrier is not None and journal.last_barrier.task == leases.until:
            return None  # it is evaluated, and callbacks have not passed it yet (B5)
        return StateId(self.order.steps_before(leases.low), ViewId(leases.roll_back))

    @property
    def barriers(self) -> Barriers:
        """Return the job's barriers."""
        assert self.order is not None, "barriers are some of the job's tasks"
        return Barriers(self.order, follows=self.follows)

    # ------------------------------------------------------------------ figures

    def steps_done(self, applied: int) -> int:
        """Return how many steps are settled; `applied`: so many are known to be complete on the servers."""
        leases = self.leases
        begun = leases.begun()
        if leases.waves is None:
            return self.steps + sum(begun.values())
        if leases.is_over:
            return self.steps
        # A step is made when each of the wave's tasks has had its turn; those that are done hold up none.
        wave = leases.waves.tasks(leases.low)
        settled = min(begun.get(TaskNumber(task), 0) for task in wave if task not in leases.done)
        return max(applied, self.steps + settled)

    @property
    def records_done(self) -> int:
        """Return how many records are trained."""
        order = self.order
        if order is None:
            return 0
        size = order.ledger.minibatch_size
        begun = self.leases.begun().items()
        return self.records + sum(min(chunk * size, order.records(task)) for task, chunk in begun)

    @property
    def has_used_all_data(self) -> bool:
        """Tell whether every record of every epoch was trained."""
        return self.leases.is_over and self.order is not None and not self.order.is_cut()

    # ------------------------------------------------------------------ what a snapshot says

    def step_of(self, cut: CutRecord) -> int:
        """Return how many steps the tasks of a snapshot have."""
        return cut.step if cut.step or self.order is None else _steps(self.order, self.leases, cut.position)

    @property
    def whole(self) -> Done:
        """Return the tasks that are done, but for one of which the job leaves chunks out."""
        done = self.leases.done
        # Another job may go on with these, so no slot may forget which of their chunks it holds.
        for task in () if self.order is None else self.order.partial:
            done = done.without(TaskNumber(task))
        return done

    @property
    def in_parts(self) -> tuple[tuple[int, int], ...]:
        """Return the tasks that are not done in a checkpoint, with how many of their first chunks are settled."""
        assert self.order is not None, "slots are cut once the data is known"
        begun = {int(task): chunks for task, chunks in self.leases.begun().items() if chunks}
        cut_short = (task for task in self.order.partial if task in self.leases.done)
        return tuple(sorted({**begun, **{task: self.order.chunks(task) for task in cut_short}}.items()))


def _steps(order: TaskOrder, leases: Leases, done: Done) -> int:
    beyond = () if leases.waves is not None else done.above
    return order.steps_before(done.low) + sum(map(order.chunks, beyond))
