"""What must hold after every event of a schedule, whatever breaks.

The oracle sees what happens in fact (which gradients lie in which accumulator, which commits made a state), not what the machines
believe. It shares no code with them: the audit's rule is written here a second time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from elasticdl.control.protocol.messages import Cut, Failed, Finished, MetricValues, NewView
from elasticdl.control.protocol.view import StateId, View
from elasticdl.data.plan.shard import Position
from elasticdl.master.core.records import (
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Record,
    ResumedStateRecord,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
)

if TYPE_CHECKING:
    from tests.simulation.processes import SavedPart
    from tests.simulation.world import World

Lineage = tuple[int, ...]
"""A state of the model: the view that named the initial weights, then the view that committed each step."""

Chunk = tuple[int, int, int]

History = tuple[tuple[StateId, MetricValues | None], ...]
"""What callbacks have had: the metrics of which states; None where the job stopped without."""


class Violation(AssertionError):
    """A promise of the protocol does not hold."""


def is_prefix(a: Lineage, b: Lineage) -> bool:
    return len(a) <= len(b) and b[: len(a)] == a


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.view: View | None = None
        self.view_base: Lineage | None = None
        self.contents: dict[int, View] = {}
        self.states: dict[StateId, Lineage] = {}
        self.bounds: dict[int, int] = {}
        self.snapshot: Lineage | None = None
        self.stopping = False
        self.finished: FinishedRecord | None = None
        self.failed: FailedRecord | None = None
        self.without_journal = False
        self.result: Lineage | None = None
        self.commits: dict[int, set[int]] = {}
        self.lines: dict[tuple[int, int], dict[str, tuple[Chunk, ...]]] = {}
        self.wanted: dict[tuple[int, int], list[Chunk]] = {}
        self.after: dict[tuple[int, int], Position] = {}
        self.evaluated: dict[StateId, MetricValues] = {}
        self.told_finished = False
        self.told_failed = False
        self.faultless = True
        self.erred = False
        self.full_disk = False
        """Something could not be written."""
        self.saved: dict[str, StateId] = {}
        """Journalled snapshots, by path."""
        self.first = 0
        """Steps that an earlier job has made."""
        earlier = world.earlier
        if earlier is not None:
            self.first = earlier.state.step
            self.states[earlier.state] = world.files[earlier.path]
            self.after[(0, self.first)] = earlier.position

    # ------------------------------------------------------------------ states

    def names(self, state: StateId, lineage: Lineage, who: str) -> None:
        """Equal state ids are bit-identical states."""
        if len(lineage) - 1 != state.step or lineage[-1] != state.view:
            raise Violation(f"{who} {state}, but the memory holds {lineage}")
        if self.states.setdefault(state, lineage) != lineage:
            raise Violation(f"{who}: two states are called {state}: {self.states[state]} and {lineage}")

    def records(self, task: Any, chunk: int) -> int:
        batch = self.world.schedule.ledger.minibatch_size
        return max(0, min(task.count - chunk * batch, batch))

    def _chunks(self, position: Position) -> list[Chunk]:
        tasks = [self.world.schedule.task(position, lane) for lane in range(position.lanes)]
        return [(task.epoch, task.id, position.chunk) for task in tasks]

    # ------------------------------------------------------------------ members

    def installed(self, worker: Any, view: View, keep: bool) -> None:
        self._one_content(view)
        if keep or view.final or worker.lineage is None or not worker.accumulator or worker.late:
            return
        if self.states.get(view.base) == worker.lineage and self.world.faithful:
            raise Violation(f"{worker.name} throws away {worker.accumulator} at view {view.id}")

    def sealed(self, worker: Any, sealed: int) -> None:
        """From now on the view commits at most one step more than the sealer holds (nothing, if it had never installed it)."""
        for view_id, view in self.contents.items():
            if view_id > sealed or view_id <= worker.closed or view.rank(worker.id) is None:
                continue
            if worker.view is not None and worker.view.id == view_id:
                done = max(view.base.step, len(worker.lineage or (0,)) - 1)
                self._bound(view_id, done + 2)
            else:
                self._bound(view_id, view.base.step + 1)

    def _bound(self, view_id: int, first: int) -> None:
        self.bounds[view_id] = min(first, self.bounds.get(view_id, first))

    def contributed(self, worker: Any, work: Any, given: tuple[tuple[int, Chunk, Lineage], ...]) -> None:
        lanes = tuple(sorted(line.lane for line in work.lines))
        if not work.blank and lanes != tuple(sorted(entry[0] for entry in given)):
            raise Violation(f"{worker.name} says it gives lanes {lanes}, its accumulator holds {given}")
        lines = self.lines.setdefault((work.view, work.step), {})
        lines[worker.name] = tuple(entry[1] for entry in given)

    def committed(self, worker: Any, work: Any, ring: Any, position: Position) -> None:
        step = work.state.step
        wanted = self._chunks(position)
        given = [entry for part in ring.parts.values() for entry in part]
        if sorted(entry[1] for entry in given) != sorted(wanted):
            raise Violation(f"step {step} of view {work.view} counts {given}, not each of {wanted} once")
        for _, _, lineage in given:
            if lineage != worker.lineage:
                raise Violation(
                    f"{worker.name} commits step {step} from gradients of {lineage}, it holds {worker.lineage}"
                )
        bound = self.bounds.get(work.view)
        if bound is not None and step >= bound:
            raise Violation(f"split brain: view {work.view} was sealed or replaced and commits step {step}")
        self._has_passed(worker.name, worker.lineage, worker.history, of_last=True)
        lineage = (*worker.lineage, work.view)
        self.wanted[(work.view, step)] = wanted
        self.after[(work.view, step)] = work.position
        self.commits.setdefault(step, set()).add(work.view)
        self.names(work.state, lineage, f"{worker.name} commits")
        if self.finished is None:
            self._in_lineage(worker, lineage)

    def _in_lineage(self, worker: Any, lineage: Lineage) -> None:
        """Everybody in the latest view holds a state of its lineage, and one that fits the snapshot."""
        view = self.view
        if view is None or view.rank(worker.id) is None or self.view_base is None:
            return
        base = self.view_base
        installed = worker.view is not None and worker.view.id == view.id
        fits = is_prefix(lineage, base) or (installed and is_prefix(base, lineage))
        if not fits:
            raise Violation(
                f"{worker.name} holds {lineage}, which is not in the lineage {base} of view {view.id}"
            )
        snapshot = self.snapshot
        if (
            installed
            and snapshot is not None
            and not (is_prefix(snapshot, lineage) or is_prefix(lineage, snapshot))
        ):
            raise Violation(f"the snapshot {snapshot} is not in the lineage of {worker.name}: {lineage}")

    # ------------------------------------------------------------------ gates

    def gates(self, lineage: Lineage) -> list[StateId]:
        """Return the states of a lineage that are evaluated, by the rule of the plan."""
        schedule, found = self.world.schedule, []
        for step in range(max(1, self.first), len(lineage)):
            after = self.after[(lineage[step], step)]
            every = self.world.plan.gates
            if every and (step % every == 0 or schedule.ended(after, step)):
                found.append(StateId(step, lineage[step]))
        return found

    def _has_passed(self, who: str, lineage: Lineage, history: History, *, of_last: bool) -> None:
        """G1: every gate of a lineage was passed once, in order; `of_last`: that of its last state, too."""
        gates = self.gates(lineage)
        last = StateId(len(lineage) - 1, lineage[-1])
        wanted = [state for state in gates if of_last or state != last]
        passed = [state for state, _ in history]
        if passed != wanted:
            raise Violation(f"{who} has passed {passed}, its state {lineage} has the gates {wanted}")

    def passed(self, worker: Any, state: StateId, values: MetricValues | None) -> None:
        """G4: metrics are those of the journal, for exactly this state."""
        self._has_passed(worker.name, worker.lineage, worker.history, of_last=False)
        if values is None:
            if not self.stopping:
                raise Violation(
                    f"{worker.name} passes the gate of {state} without metrics, and nothing has stopped the job"
                )
        elif self.evaluated.get(state) != values:
            raise Violation(
                f"{worker.name} has {values} of {state}, the journal says {self.evaluated.get(state)}"
            )

    def _evaluate(self, record: EvaluatedRecord) -> None:
        """G4: metrics are journalled once per state, never after `stopping`, and are made of each task once, of this very state."""
        state = record.state
        if state in self.evaluated:
            raise Violation(f"{state} is evaluated twice")
        if self.stopping:
            raise Violation(f"{state} is evaluated after a stop was acknowledged")
        parts = [json.loads(part) for part in record.values[0][0].split()]
        if [part[0] for part in parts] != list(range(self.world.schedule.evaluation.num_tasks)):
            raise Violation(f"metrics of {state} are made of {parts}, not of each task once")
        for _, lineage in parts:
            if tuple(lineage) != self.states.get(state):
                raise Violation(
                    f"metrics of {state} are made of {lineage}, which is {self.states.get(state)}"
                )
        self.evaluated[state] = record.values

    # ------------------------------------------------------------------ the journal

    def appended(self, record: Record) -> None:
        if self.finished is not None or self.failed is not None:
            raise Violation(f"{record} follows a terminal record")
        match record:
            case ViewRecord(view):
                self._new_view(view)
            case SnapshotRecord(_, state, _, path):
                self.snapshot = self.states[state]
                self.saved[path] = state
                self.names(state, self.snapshot, "the snapshot record says")
                base = self.view_base
                if base is not None and not (
                    is_prefix(self.snapshot, base) or is_prefix(base, self.snapshot)
                ):
                    raise Violation(
                        f"the snapshot {self.snapshot} is not in the lineage {base} of the current view"
                    )
                for worker in self.world.workers:
                    if worker.lives and worker.lineage is not None:
                        self._in_lineage(worker, worker.lineage)
            case ResumedStateRecord(_, path):
                self.snapshot = self.world.files[path]
            case EvaluatedRecord():
                self._evaluate(record)
            case StoppingRecord():
                self.stopping = True
            case FinishedRecord():
                self._finish(record)
            case FailedRecord():
                self.failed = record
                if not self.erred:
                    raise Violation(f"the job failed without a program error: {record.reason}")

    def completed(self, cut: Cut, parts: list[SavedPart]) -> None:
        """A complete checkpoint is of exactly one state: it has a part of each member of the view, and each is of that state."""
        view = self.contents[cut.view]
        if [(part.rank, part.members) for part in parts] != [
            (rank, len(view.members)) for rank in range(len(view.members))
        ]:
            raise Violation(
                f"the checkpoint of {cut} is made of {parts}, and the view has {len(view.members)} members"
            )
        for part in parts:
            self.names(cut.state, part.lineage, f"the checkpoint of {cut} says")
            if part.history != parts[0].history:
                raise Violation(
                    f"the parts of the checkpoint of {cut} differ in what callbacks have had: {parts}"
                )

    def _one_content(self, view: View) -> None:
        if self.contents.setdefault(view.id, view) != view:
            raise Violation(f"view {view.id} has two contents")

    def _new_view(self, view: View) -> None:
        self._one_content(view)
        before = self.view
        if before is not None and view.id != before.id + 1:
            raise Violation(f"view {view.id} follows view {before.id}")
        if self.stopping and not view.final:
            raise Violation(f"a stop was acknowledged, and view {view.id} continues training")
        base = self.states.get(view.base)
        if self.first and before is None and view.base != StateId(self.first, 0):
            raise Violation(
                f"the job continues from step {self.first}, and view {view.id} starts from {view.base}"
            )
        if base is None:
            if view.base.step:
                raise Violation(f"view {view.id} starts from {view.base}, which nobody has ever held")
            base = (view.base.view,)
            self.states[view.base] = base
        if self.snapshot is not None and not is_prefix(self.snapshot, base):
            raise Violation(f"view {view.id} starts from {base}, behind the snapshot {self.snapshot}")
        if "is left out" in view.reason:
            self.faultless = False  # somebody was suspected
            plan = self.world.plan
            if (
                "makes no progress" in view.reason
                and not (plan.pauses or plan.hangs or plan.stuck or plan.export_faults)
                and self.world.faithful
            ):
                raise Violation(f"somebody stopped working though nothing had paused it: {view.reason}")
        if before is not None:
            self.bounds.setdefault(before.id, view.base.step + 2)
            if self.faultless:
                reached = max(self.commits, default=0)
                if view.base.step < reached:
                    raise Violation(
                        f"nothing broke, and view {view.id} starts at step {view.base.step} of {reached}"
                    )
            self._drains_lose_nothing(before, view, base)
        self.view, self.view_base = view, base
        for worker in self.world.workers:
            if worker.lives and worker.lineage is not None:
                self._in_lineage(worker, worker.lineage)

    def _drains_lose_nothing(self, before: View, view: View, base: Lineage) -> None:
        for peer in before.members:
            worker = self.world.by_id[peer.id]
            if (
                view.rank(peer.id) is not None
                or not worker.machine.draining
                or f"{peer.name} is" in view.reason
                or f"{peer.name} can't be reached" in view.reason
            ):
                continue
            report = worker.machine.report
            if report is not None and report.state is not None and report.state.step >= len(base):
                raise Violation(
                    f"{peer.name} drains, left with {report.state}, and view {view.id} starts from {base}"
                )

    def _finish(self, record: FinishedRecord) -> None:
        self.finished = record
        if record.path not in self.world.files:
            raise Violation("the job counts as finished and nobody holds its result")
        result = self.world.files[record.path]
        self.result = result
        self.names(record.state, result, "the finished record says")
        self._has_passed("the result", result, self.world.histories[record.path], of_last=True)
        view = self.view
        steps = len(result) - 1
        if not self.stopping and not self.world.schedule.ended(self.after[(result[-1], steps)], steps):
            raise Violation(f"finished at step {steps}")
        if view is None or record.state != view.base or record.view != view.id:
            raise Violation(
                f"the result {record.state} of view {record.view} is not the base of the last view"
            )
        reached = max(self.commits, default=0)
        if self.faultless and reached > steps:
            raise Violation(
                f"step {reached} was committed, nothing broke, and the result ends with step {steps}"
            )
        if self.world.plan.lasting and self.faultless and not self.full_disk and steps > self.first:
            last = list(self.saved.values())[-1:]
            if last != [record.state]:
                raise Violation(
                    f"nothing broke, and the last checkpoint is of {last}, the result of {record.state}"
                )
        self.audit(result)

    def audit(self, result: Lineage) -> None:
        """The audit's rule: the highest view that committed a step, with all contributions of that view to it."""
        seen: list[Chunk] = []
        for step in self.audited_steps(result)[self.first :]:
            top = max(self.commits.get(step, {0}))
            if step >= len(result) or top != result[step]:
                raise Violation(f"audit: view {top} committed step {step} last, the result has {result}")
            for chunks in self.audited_lines(top, step).values():
                seen += chunks
        if len(seen) != len(set(seen)):
            raise Violation("audit: a chunk counts twice")
        expected = {
            chunk
            for step in range(1 + self.first, len(result))
            for chunk in self.wanted[(result[step], step)]
        }
        if set(seen) != expected:
            raise Violation(
                f"audit: chunks {sorted(expected ^ set(seen))} are in the result or in the lines, not in both"
            )

    def audited_steps(self, result: Lineage) -> range:
        return range(1, len(result))

    def audited_lines(self, view: int, step: int) -> dict[str, tuple[Chunk, ...]]:
        return self.lines.get((view, step), {})

    # ------------------------------------------------------------------ what is said

    def told(self, worker: Any, message: Any) -> None:
        del worker
        match message:
            case NewView(view):
                self._one_content(view)
            case Finished():
                self.told_finished = True
                if self.finished is None:
                    raise Violation("a member is told `finished`, the journal does not say so")
            case Failed():
                self.told_failed = True
                if self.failed is None:
                    raise Violation("a member is told `failed`, the journal does not say so")

    def replied(self) -> None:
        if not self.stopping and self.finished is None and self.failed is None:
            raise Violation("a stop was acknowledged, the journal does not say so")

    def given_up(self) -> None:
        """Note that a master has ended the job because its journal can't be written: only one that trains nothing may be."""
        if self.view is not None:
            raise Violation(f"a job is given up without its journal, and view {self.view.id} is there")
        self.without_journal = True

    def published(self, path: str) -> None:
        if self.finished is None or self.world.files[path] != self.result:
            raise Violation(f"{path} was published and is not the job's result")
        self.world.published = True

    # ------------------------------------------------------------------ the end

    def over(self) -> bool:
        """Tell whether a master has brought the job to its end and no other one is left."""
        return self.world.ended is not None and not any(master.lives for master in self.world.masters)

    def check_end(self) -> None:
        named = {path: cut.state for path, cut in self.world.named.items()}
        if given_up := [path for path in named if path not in self.saved]:
            raise Violation(f"{given_up} have names of checkpoints, and the journal does not say so")
        if self.saved and list(self.saved)[-1] not in named:
            raise Violation(f"{list(self.saved)[-1]} is journalled, and has not got its name")
        if any(self.saved[path] != state for path, state in named.items()):
            raise Violation(f"checkpoints {named} are of other states than the journal says: {self.saved}")
        if self.finished is not None and not self.world.published:
            raise Violation("the job is finished and its result has not got its final name")
        verdicts = sum(end is not None for end in (self.finished, self.failed))
        if verdicts != 1 and not (verdicts == 0 and self.without_journal):
            raise Violation("the job has ended without a verdict, or with two")
