"""What no worker or server of a job with parameter servers can say truly, whatever has happened to it.

What it could say truly is believed, also where it is not so: which chunks are settled only workers know, and what was applied only servers
do. The audit compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from elasticdl.catalog.catalog import read_catalog
from elasticdl.control.protocol.messages import Evaluated, Exported, MemberMessage, TaskResult
from elasticdl.control.protocol.psmessages import (
    Accounts,
    BarrierPassed,
    CopyReady,
    Enroll,
    FoundMetrics,
    FoundModel,
    Holding,
    Leave,
    Settled,
    SlotAccount,
    SlotsCut,
    SlotSection,
    TaskDone,
    Unreached,
)
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.barriers import Barriers
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.errors import BadModel
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.evaluationresults import ResultSize, bad_metrics, bad_result
from elasticdl.master.core.records import Journal
from elasticdl.master.ps.evaluations import Evaluations
from elasticdl.master.ps.leases import Leases


@dataclass(frozen=True, slots=True)
class Known:
    """What the words of a worker or server are compared with.

    Attributes:
        server: number of the server that speaks, None for others.
        is_elder: the process was there before this master, which may not have heard yet what it was leased.
        journal: what is durable.
        order: the tasks, None until the data is known.
        leases: who computes which.
        follows: what this process has said of its callbacks (B5), None if it has not enrolled with this master yet.
        has_model: what is on the servers is known, and needs no finding.
        directory: in which slots are written now; None if no snapshot is under way.
        attempt: in which this process was asked for the result, None if it was not, or if a roll-back has ended the attempt: what it says
            of an earlier one may be of more steps than are settled now, and means nothing.
        evaluations: what is evaluated.
        result_size: the bytes of a task's result, as its description says; raises ValueError for what describes none.
        steps: how many are settled.
        possible_steps: how many can be complete.
    """

    server: ServerId | None
    is_elder: bool
    journal: Journal
    order: TaskOrder | None
    leases: Leases
    follows: bool | None
    has_model: bool
    directory: Path | None
    attempt: int | None
    evaluations: Evaluations
    result_size: ResultSize
    steps: Callable[[], int]
    possible_steps: Callable[[], int]


def impossible(known: Known, message: MemberMessage) -> str | None:
    """Return why no process can say this, None if one may."""
    journal = known.journal
    match message:
        case Enroll(server=server) if server is not None and server >= journal.next_server:
            return f"it is server {server}, and {journal.next_server} numbers were given"
        case Enroll(follows=follows) if known.follows not in (None, follows):
            was, now = ("did", "do not") if known.follows else ("did not", "do")
            return f"its callbacks {was} follow epochs or evaluations before, and {now} now"
        case Enroll(holds=holds, roll_back=roll_back) | Leave(holds, roll_back):
            return _bad_holds(known, holds, roll_back)
        case FoundModel(catalog):
            return None if known.has_model else _bad_catalog(catalog)
        case Settled(task, chunk, roll_back):
            return _later_roll_back(known, roll_back) or _bad_chunk(known, task, chunk)
        case TaskDone(task, roll_back):
            return _never_leased(known, task, roll_back)
        case Unreached(servers):
            return _unknown_server(known, servers)
        case CopyReady():
            return _bad_copy(known, message)
        case Accounts():
            return _bad_accounts(known, message)
        case SlotsCut():
            return _bad_cut(known, message)
        case FoundMetrics(metrics):
            # A worker may come before the data is found.
            bad = None if known.order is None else _not_evaluated(known)
            return bad or bad_metrics(metrics, known.evaluations.metrics or None, known.result_size)
        case TaskResult(state):
            plan = None if known.order is None else known.order.evaluation
            bad = _not_evaluated(known) or _bad_barrier(known, state)
            return bad or bad_result(message, plan, known.evaluations.evaluation, known.result_size)
        case Evaluated(state):
            return _not_evaluated(known) or _bad_barrier(known, state)
        case BarrierPassed(state):
            return _bad_barrier(known, state, follows=True)
        case Exported(state=state) if state.view == known.attempt and state.step > known.steps():
            return f"a result of step {state.step}, and {known.steps()} are settled"
    return None


def contradiction(journal: Journal, order: TaskOrder | None) -> str | None:
    """Return why a journal can't say what it says, None if it may."""
    total = 0 if order is None else order.total
    cut, saved = journal.cut, None if journal.saved is None else journal.saved[1]
    for done in (journal.done, *(one.position for one in (cut, saved) if one is not None)):
        if why := _beyond(done, total):
            return why
    if why := _bad_evaluated(journal, order):
        return why
    if journal.model is None:
        return "slots are placed, and of no model" if journal.entries else None
    if why := _bad_catalog(journal.model):
        return f"the model that it has is none: {why}"
    slots = read_catalog(journal.model).slots
    if journal.entries and len(journal.entries) != slots:
        return f"{len(journal.entries)} slots are placed, and the model has {slots}"
    return None


def _beyond(done: Done, total: int) -> str | None:
    last = max((done.low - 1, *done.above))
    return None if last < total else f"task {last} is done, and the data has {total} tasks"


def _bad_catalog(text: str) -> str | None:
    try:
        read_catalog(text).core()
    except (BadModel, ValueError) as error:
        return str(error)
    # Workers compare texts: one that is written otherwise would be another model to all of them.
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return None if canonical == text else "its text is not canonical JSON"


# ------------------------------------------------------------------ tasks


def _later_roll_back(known: Known, roll_back: int) -> str | None:
    last = known.journal.roll_back
    return f"it is of roll-back {roll_back}, and the last one is {last}" if roll_back > last else None


def _bad_chunk(known: Known, task: int, chunk: int) -> str | None:
    total = 0 if known.order is None else known.order.total
    if known.order is None or task >= total:
        return f"task {task}, and there are {total}"
    chunks = known.order.chunks(task)
    return f"chunk {chunk} of task {task}, which has {chunks}" if chunk > chunks else None


def _bad_holds(known: Known, holds: Iterable[Holding], roll_back: int) -> str | None:
    for task, chunk in holds:
        why = _never_leased(known, task, roll_back) or _bad_chunk(known, task, chunk)
        if why:
            return why
    return _later_roll_back(known, roll_back)


def _never_leased(known: Known, task: int, roll_back: int) -> str | None:
    """Return why nobody can have been leased a task in a roll-back."""
    if roll_back < known.journal.roll_back:
        return None  # it means nothing any more (R22)
    why = _later_roll_back(known, roll_back) or _bad_chunk(known, task, 0)
    if why or known.leases.was_leased(TaskNumber(task)):
        return why
    is_inherited = known.is_elder and task < known.leases.inherited
    return None if is_inherited else f"task {task} was leased to nobody"


# ------------------------------------------------------------------ evaluations


def _not_evaluated(known: Known) -> str | None:
    is_evaluated = known.order is not None and known.order.evaluation is not None
    return None if is_evaluated else "an evaluation, and nothing is evaluated in this job"


def _bad_barrier(known: Known, state: StateId, *, follows: bool = False) -> str | None:
    """Return why nobody was at the barrier of a state: the job has not come to such a one.

    `follows`: what is meant may be one at which only callbacks have something to do (B5).
    """
    if why := _later_roll_back(known, state.view):
        return why
    if state.view < known.journal.roll_back:
        return None  # it means nothing any more (B3)
    order, low = known.order, known.journal.done.low
    if order is None or Barriers(order, follows=follows).at_step(state.step, low) is None:
        return f"an evaluation of step {state.step}, and the job is at no such barrier"
    return None


def _bad_evaluated(journal: Journal, order: TaskOrder | None) -> str | None:
    """Return why a journal can't have metrics that it has, None if it may."""
    inherited = () if journal.resumed is None else journal.resumed.barriers
    for record in journal.evaluated.values():
        if record in inherited:
            continue  # of an earlier job, which may have had other settings
        what = f"step {record.state.step} is evaluated"
        if order is None or (record.values and order.evaluation is None):
            return f"{what}, and nothing is in this job"
        # Which barriers are there for callbacks alone (B5) workers have not said yet.
        barriers = Barriers(order, follows=not record.values)
        if barriers.at_step(record.state.step, journal.done.low) != record.task:
            return f"{what} at task {record.task}, and the job has come to no such barrier"
        if record.state.view > journal.roll_back:
            return f"{what} in roll-back {record.state.view}, and the last one is {journal.roll_back}"
    return None


# ------------------------------------------------------------------ servers


def _unknown_server(known: Known, servers: Iterable[int]) -> str | None:
    given = known.journal.next_server
    unknown = next((server for server in servers if server >= given), None)
    return None if unknown is None else f"server {unknown}, and {given} numbers were given"


def _bad_copy(known: Known, copy: CopyReady) -> str | None:
    """A copy is made by the primary of the entry that it was ordered on, at a server that this entry does not name (R14)."""
    entries = known.journal.entries
    if copy.slot >= len(entries):
        return f"slot {copy.slot}, and there are {len(entries)}"
    entry = entries[copy.slot]
    if copy.term < entry.term:
        return None  # another entry has voided it
    if copy.term > entry.term:
        return f"term {copy.term} of slot {copy.slot}, whose last one is {entry.term}"
    if known.server != entry.primary or entry.names(ServerId(copy.to)):
        return f"a copy of slot {copy.slot} from server {known.server} to {copy.to}, and {entry.primary} and {entry.backup} have it"
    return _unknown_server(known, (copy.to,))


def _bad_slots(known: Known, slots: Iterable[SlotAccount | SlotSection]) -> str | None:
    count = len(known.journal.entries)
    for one in slots:
        if one.slot >= count:
            return f"slot {one.slot}, and there are {count}"
        if len(one.sum) != 32 or one.sum.strip("0123456789abcdef"):
            return f"a sum of 32 hexadecimal digits is {one.sum[:40]!r}"
    return None


def _bad_accounts(known: Known, accounts: Accounts) -> str | None:
    why = _later_roll_back(known, accounts.roll_back) or _bad_slots(known, accounts.slots)
    if why or accounts.roll_back < known.journal.roll_back:
        return why
    most = known.possible_steps()
    return f"{accounts.steps} steps, and {most} can be complete" if accounts.steps > most else None


def _bad_cut(known: Known, cut: SlotsCut) -> str | None:
    last = 0 if known.journal.cut is None else known.journal.cut.number
    if cut.snapshot > last:
        return f"snapshot {cut.snapshot}, and the last one is {last}"
    if cut.snapshot < last or known.directory is None:
        return None  # that one is whole, or was given up
    path = Path(cut.path)
    if path.parent != known.directory or "\0" in path.name or path.name == "..":
        return f"slots are written to {cut.path[:200]!r}, and not to a file in {known.directory}"
    return _bad_slots(known, cut.sections)
