"""What must hold in every state of a job with parameter servers: the promises of the protocol's page.

Each chunk counts itself in a column of its own, so a slot's rows say how often it was applied there. What is acknowledged is read from
the packets that workers get.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticdl.audit.stamps import _hash
from elasticdl.control.protocol.psmessages import Leased, Limits, SlotAccount, Watermark
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.records import (
    CutRecord,
    EvaluatedRecord,
    FinishedRecord,
    Journal,
    PlacementRecord,
    Record,
    SavedRecord,
    read_journal,
)
from tests.simulation.oracle import Violation
from tests.simulation.servers.model import CHUNKS, SLOTS

if TYPE_CHECKING:
    from elasticdl.master.ps.machine import PsMaster
    from elasticdl.worker.ps.events import Compute
    from elasticdl.worker.ps.tasks import Chunk
    from tests.simulation.servers.processes import ServerProcess, WorkerProcess
    from tests.simulation.servers.world import Plan, World

ANSWERS = 20
SETTLED, CLOSED, MOVED = 1, 2, 3


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.acknowledged: dict[int, set[int]] = defaultdict(set)
        """Of each slot, the columns of the chunks whose parts some worker was told to be settled."""
        self.promised = True
        """No slot has lost all its copies."""
        self.accounts: Mapping[int, SlotAccount] = {}
        """As the master had them that finished the job."""
        self._read = 0
        self._journal = Journal()

    def journal(self) -> Journal:
        """Return what the journal says."""
        records = self.world.journal
        while self._read < len(records):
            self._journal = self._journal.with_record(records[self._read])
            self._read += 1
        return self._journal

    def entries(self) -> tuple[Entry, ...]:
        return self.journal().entries

    # ------------------------------------------------------------------ what is said

    def answered(
        self, worker: WorkerProcess, server: int, kind: int, stamp: tuple[int, int] | None, words: bytes
    ) -> None:
        """Read what became of the parts of a push."""
        # What a worker is told that has not heard of a roll-back promises nothing (R24).
        if kind != ANSWERS or stamp is None or worker.roll_back != self.journal().roll_back:
            return
        column, at = self.world.model.column(*stamp), 0
        while at < len(words):
            what, slot = struct.unpack_from("<II", words, at)
            at += 8 + (40 if what == MOVED else 0)
            if what in (SETTLED, CLOSED):
                self.acknowledged[slot].add(column)
                self._check_acknowledged(slot, self._replicas(slot))

    def tells(self, master: Any, message: Any) -> None:
        """`low` passes no task that is not done."""
        if isinstance(message, Watermark | Limits):
            journal = self.journal()
            if message.roll_back == journal.roll_back and message.low > journal.done.low:
                raise Violation(f"{master.name} tells low {message.low}, and only {journal.done} is done")

        if isinstance(message, Leased) and message.roll_back == self.journal().roll_back:
            self._check_barrier(message.task, f"{master.name} leases")

    def pushes(self, worker: WorkerProcess, chunk: Chunk) -> None:
        """Nothing beyond a barrier is pushed before the metrics there are journalled (B1)."""
        if chunk.roll_back == self.journal().roll_back:
            self._check_barrier(chunk.task, f"{worker.name} pushes")
        self.computes(worker, chunk)

    def computes(self, worker: WorkerProcess, chunk: Chunk) -> None:
        """What is trained beyond a barrier is trained by callbacks that have passed it, and no other one (B5)."""
        journal, plan = self.journal(), self.world.plan
        if not plan.follows or chunk.roll_back != journal.roll_back or chunk.task in journal.done:
            return
        before = [record for record in journal.evaluated.values() if record.task <= chunk.task]
        known = [
            (record.state.step, record.epoch, record.values or None, record.epoch_ended) for record in before
        ]
        passed = [(logs.step, logs.epoch, logs.values, logs.epoch_ended) for logs in worker.adapter.passed]
        if passed != known:
            raise Violation(
                f"{worker.name} trains task {chunk.task} after callbacks have passed {passed}, and not {known}"
            )

    def sees(self, worker: WorkerProcess, work: Compute) -> None:
        """A gradient of a wave's step is made of exactly what all steps before it have made (A4)."""
        chunk, model, order = work.chunk, self.world.model, self.world.order
        mine = model.column(chunk.task, chunk.chunk)
        is_known = all(mine in self.acknowledged[slot] for slot in model.slots_of(mine))
        # What others have pushed everywhere is pushed once more for nothing.
        if not self.world.plan.grads_to_wait or chunk.roll_back != self.journal().roll_back or is_known:
            return
        first = order.wave_of(chunk.task).start
        complete = {model.column(task, one) for task in range(first) for one in range(CHUNKS)}
        complete |= {
            model.column(task, one) for task in order.wave_of(chunk.task) for one in range(chunk.chunk)
        }
        seen = {
            (slot, column): count
            for slot, counts in worker.adapter.counted(work.batch, work.rows, mine)
            for column, count in counts.items()
        }
        complete -= self.world.idle
        wrong = [(place, count) for place, count in seen.items() if count != float(place[1] in complete)]
        if wrong:
            raise Violation(f"{worker.name} computes chunk {mine} and sees of slots and chunks {wrong[:8]}")

    def _check_barrier(self, task: int, what: str) -> None:
        plan = self.world.plan
        passed = {record.task for record in self.journal().evaluated.values()}
        closed = [
            barrier
            for barrier in barriers(plan)
            if barrier not in passed and not is_passed_over(plan, barrier)
        ]
        if closed and task >= closed[0]:
            raise Violation(f"{what} task {task}, and the barrier at {closed[0]} is closed")
        if plan.stop_at and task >= plan.stop_at:
            raise Violation(f"{what} task {task}, and callbacks end the job at {plan.stop_at}")

    def _check_evaluated(self, record: EvaluatedRecord) -> None:
        """It is of exactly that state, the first of it, made of each evaluation task once, and all before it is done (B1 to B3)."""
        records = self.world.journal
        same = [one for one in records if isinstance(one, EvaluatedRecord) and one.state == record.state]
        if len(same) > 1:
            raise Violation(f"{record.state} is evaluated {len(same)} times")
        step, roll_back = record.state.step, self.journal().roll_back
        if (
            record.task not in barriers(self.world.plan)
            or step != steps_before(self.world.plan, record.task)
            or record.state.view != roll_back
        ):
            raise Violation(f"evaluation of {record.state} at task {record.task} in roll-back {roll_back}")
        if self.journal().done != Done(record.task):
            raise Violation(f"evaluation at task {record.task}, and {self.journal().done} is done")
        tasks, per_epoch = range(self.world.plan.evaluated), self.world.plan.tasks // self.world.plan.epochs
        if (record.epoch, record.epoch_ended) != (
            (record.task - 1) // per_epoch,
            record.task % per_epoch == 0,
        ):
            raise Violation(f"the barrier at {record.task} is in epoch {record.epoch}: {record}")
        names = [f"{what} {task}" for task in tasks for what in ("everywhere", "anywhere")]
        if [name for name, _ in record.values] != names:
            raise Violation(f"evaluation of step {step} is made of {record.values}")
        trained = (1 << record.task * CHUNKS) - 1
        is_exact = not roll_back or self.world.plan.grads_to_wait
        for name, bits in record.values:
            # Slots that a roll-back has spared have what was trained after the barrier.
            seen = int(bits) if is_exact else int(bits) & trained
            if seen != trained:
                raise Violation(f"evaluation of step {step} has seen {name}: {seen:b}")

    def appended(self, master: PsMaster, record: Record) -> None:
        match record:
            case EvaluatedRecord():
                self._check_evaluated(record)
            case PlacementRecord(position=Done()):
                self.acknowledged.clear()
            case FinishedRecord():
                self.accounts = master.ending.accounts
        self.check()

    def completes(self, number: int, held: Mapping[int, set[int]]) -> None:
        """The snapshot of a best barrier is of exactly what was trained before that, and not of a barrier that is worse (B4)."""
        journal, plan = self.journal(), self.world.plan
        cut = journal.cut
        if cut is None or cut.number != number or not cut.best:
            return
        for slot, columns in held.items():
            known = {
                column
                for column in range(cut.position.low * CHUNKS)
                if slot in self.world.model.slots_of(column)
            }
            if columns != known:
                raise Violation(f"the best snapshot at task {cut.position.low} has {columns} in slot {slot}")
        # An earlier job may have evaluated nothing at the end of its last epoch, of which callbacks hear.
        passed = [record.task for record in journal.evaluated.values() if record.values] or [0]
        best = max(passed) if plan.best == "more" else min(passed)
        if cut.position.low != best:
            raise Violation(
                f"the snapshot at task {cut.position.low} is kept as the best, and that is {best}"
            )

    def _check_best(self, journal: Journal) -> None:
        """Where no master and no last copy is lost, the best barrier has its snapshot."""
        plan = self.world.plan
        lost = (
            plan.master_kills
            + plan.master_hangs
            + plan.second_masters
            + plan.record_kills
            + plan.record_masters
        )
        # What an earlier job has found is better, or some of its slots hold what is beyond the barrier.
        if not plan.best or lost or journal.roll_back or plan.earlier is not None:
            return
        wanted = self.best_saved()
        if wanted is None:
            raise Violation("the job has ended, and its best barrier has no snapshot")

    def best_saved(self) -> int | None:
        """Return the number of the last snapshot of a best barrier that is whole."""
        records = self.world.journal
        best = {one.number for one in records if isinstance(one, CutRecord) and one.best}
        saved = [one.number for one in records if isinstance(one, SavedRecord) and one.number in best]
        return saved[-1] if saved else None

    def training_ended(self, worker: WorkerProcess) -> None:
        """In a worker that is there when the job is finished it has ended once, in every other one at most once."""
        ends = worker.adapter.ends
        if ends > 1 or (worker.was_there and not ends):
            raise Violation(f"training has ended {ends} times in {worker.name}")

    # ------------------------------------------------------------------ slots

    def _counts(self, number: int, slot: int, primary_epoch: int | None) -> dict[int, set[float]] | None:
        server = self.world.servers.get(number)
        if server is None or not server.lives:
            return None
        found = server.machine.weights(slot, self.world.model.ids[slot], primary_epoch)
        return None if found is None else self.world.model.counts(slot, *found)

    def _replicas(self, slot: int) -> list[tuple[int, dict[int, set[float]]]]:
        """Return what the servers hold that the journal names, as far as they are there and have the whole of it."""
        entry = self.entries()[slot]
        named = [entry.primary] + ([] if entry.backup is None else [entry.backup])
        found = ((number, self._counts(number, slot, entry.primary_epoch)) for number in named)
        return [(number, counts) for number, counts in found if counts is not None]

    def _is_there(self, column: int, counts: set[float]) -> bool:
        """Tell whether a slot has a chunk once, or keeps it for its step, or knows that it is no number, which only its stamps tell."""
        is_told_by_stamps = self.world.plan.grads_to_wait > 0 or column in self.world.idle
        return counts == {1.0} or (is_told_by_stamps and counts == {0.0})

    def _check_acknowledged(self, slot: int, replicas: Sequence[tuple[int, dict[int, set[float]]]]) -> None:
        for number, counts in replicas:
            for column in self.acknowledged[slot]:
                if column in counts and not self._is_there(column, counts[column]):
                    raise Violation(
                        f"chunk {column} was acknowledged, and slot {slot} of server {number} has it {counts[column]} times"
                    )

    def check(self) -> None:
        """Nothing is applied twice; what is done is everywhere; what is acknowledged stays."""
        if not self.entries():
            return
        done = self.journal().done
        columns = {
            task * CHUNKS + chunk
            for task in range(self.world.plan.tasks)
            if task in done
            for chunk in range(CHUNKS)
        }
        for slot in range(SLOTS):
            for number in self.world.servers:
                for column, counts in (self._counts(number, slot, None) or {}).items():
                    if max(counts) > 1.0:
                        raise Violation(f"server {number} has chunk {column} in slot {slot} {counts} times")
            replicas = self._replicas(slot)
            for number, counts in replicas:
                for column in columns & counts.keys():
                    if not self._is_there(column, counts[column]):
                        raise Violation(
                            f"chunk {column} is of a task that is done, and slot {slot} of server {number} has it {counts[column]} times"
                        )
            self._check_acknowledged(slot, replicas)

    # ------------------------------------------------------------------ the end

    def check_end(self) -> None:
        """Every chunk is everywhere once, the accounts say so, and replicas are equal."""
        self.check()
        world = self.world
        journal = read_journal(world.journal)
        end = world.plan.stop_at or world.plan.tasks
        if journal.done != Done(TaskNumber(end)):
            raise Violation(f"the job has ended, and {journal.done} is done")
        if barriers(world.plan) and end not in {record.task for record in journal.evaluated.values()}:
            raise Violation("the job has ended, and its last state is not evaluated")
        self._check_best(journal)
        for slot in range(SLOTS):
            stamps = [
                (task, chunk)
                for task in range(end)
                for chunk in range(CHUNKS)
                if slot in world.model.slots_of(world.model.column(task, chunk))
            ]
            if not set(stamps) <= world.lines:
                raise Violation(f"no audit line says that {set(stamps) - world.lines} was pushed")
            expected = f"{sum(map(stamp_hash, stamps)) % (1 << 128):032x}"
            account = self.accounts.get(slot)
            if account is None or (account.pushes, account.sum) != (len(stamps), expected):
                raise Violation(
                    f"the account of slot {slot} is {account}, and {len(stamps)} pushes of sum {expected} were written"
                )
        self._check_replicas(journal)

    def _check_replicas(self, journal: Journal) -> None:
        for slot, entry in enumerate(journal.entries):
            servers = [
                self.world.servers[number] for number in (entry.primary, entry.backup) if number is not None
            ]
            if any(not server.lives for server in servers):
                continue
            states = [self._content(server, slot) for server in servers]
            if len({state[0] for state in states if state is not None}) > 1:
                continue  # a frame is under way
            if None not in states and any(state != states[0] for state in states):
                raise Violation(f"primary and backup of slot {slot} differ: {states}")

    def _content(self, server: ServerProcess, slot: int) -> Any:
        _, held = server.machine.state(slot)
        weights = server.machine.weights(slot, self.world.model.ids[slot])
        return None if held is None else (held[0], held[2:], weights)


def barriers(plan: Plan) -> list[int]:
    """Return all barriers of a job, the last of which is the end."""
    if not plan.evaluated and not plan.follows:
        return []
    every = plan.evaluation_steps if plan.evaluated else 0
    steps = range(every, CHUNKS * len(waves(plan)), every) if every else range(0)
    reached = ((*waves(plan), plan.tasks)[-(-step // CHUNKS)] for step in steps)
    epoch = plan.tasks // plan.epochs
    return sorted({*reached, *range(epoch, plan.tasks + 1, epoch)})


def waves(plan: Plan) -> list[int]:
    """Return the first tasks of all waves, each of which has as many steps as a task has chunks."""
    epoch = plan.tasks // plan.epochs
    return [
        first + task
        for first in range(0, plan.tasks, epoch)
        for task in range(0, epoch, max(1, plan.grads_to_wait))
    ]


def steps_before(plan: Plan, task: int) -> int:
    """Return the steps before the first task of a wave, or before the number behind the last one."""
    return CHUNKS * sum(first < task for first in waves(plan))


def is_passed_over(plan: Plan, barrier: int) -> bool:
    """Tell whether an earlier job has trained what is beyond a barrier, which can't be taken away."""
    earlier = plan.earlier
    return earlier is not None and barrier <= max((earlier.low - 1, *earlier.above))


def stamp_hash(stamp: tuple[int, int]) -> int:
    """Return what the auditor adds up."""
    low, high = _hash(*stamp)
    return low | high << 64
