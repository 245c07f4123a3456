"""What no member of a synchronous job can say truly, whatever has happened to it.

Views are sent when they are durable, so a member knows of none that this master does not (who has seen a later master is not heard at all).
A state is believed otherwise: only its members know what they have committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from elasticdl.checkpoint.layout import group_draft_of
from elasticdl.control.protocol.messages import (
    AtGate,
    Evaluated,
    Lost,
    MemberMessage,
    NextView,
    Progress,
    Register,
    Report,
    Saved,
    TaskResult,
)
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.evaluationresults import ResultSize, bad_metrics, bad_result
from elasticdl.master.core.records import ResumedStateRecord


class Known(NamedTuple):
    """What a member's words are compared with.

    Attributes:
        member: who speaks.
        view: the current view, None before the first.
        schedule: the order of the data, None until it is known.
        most_lanes: no wave of any view had more.
        snapshots: the folder in which members save states, None if there is none.
        evaluation: what is evaluated, None if nothing is.
        result_size: the bytes of a task's result, as its description says; raises ValueError for what describes none.
        resumed: the checkpoint from which the job continued.
    """

    member: MemberId
    view: View | None
    schedule: Schedule | None
    most_lanes: int
    snapshots: Path | None
    evaluation: Evaluation | None
    result_size: ResultSize
    resumed: ResumedStateRecord | None = None


def impossible(known: Known, message: MemberMessage) -> str | None:
    """Return why no member can say this, None if one may."""
    match message:
        case Register(report=report) | NextView(report=report):
            return _later_view(known, report.current, report.sealed) or _bad_report(known, report)
        case Lost(current):
            return _later_view(known, current)
        case Progress(current, state, position):
            return _in_view(known, current) or _bad_state(known, state, position)
        case Saved(cut, position):
            in_view = _in_view(known, cut.view) or _bad_state(known, cut.state, position)
            return in_view or _bad_part(known, message)
        case AtGate(view, state, metrics):
            evaluation = known.evaluation
            same = None if evaluation is None or evaluation.state != state else evaluation.metrics
            bad = _in_view(known, view) or _bad_gate(known, state)
            return bad or bad_metrics(metrics, same, known.result_size)
        case TaskResult(state):
            plan = None if known.schedule is None else known.schedule.evaluation
            bad = _bad_gate(known, state)
            return bad or bad_result(message, plan, known.evaluation, known.result_size)
        case Evaluated(state):
            return _bad_gate(known, state)
    return None


def contradiction(view: View, schedule: Schedule) -> str | None:
    """Return why a journal can't say this view, None if it may."""
    ranks = range(len(view.members))
    if not ranks or len(view.sources) != len(ranks):
        return f"view {view.id} has {len(ranks)} members and {len(view.sources)} sources of their states"
    if any(rank not in ranks for rank in (*view.first, *view.later, view.exporter or 0)):
        return f"view {view.id} names a member that it does not have"
    if view.wave_lanes < 1 or not schedule.has(view.position):
        return f"view {view.id} begins at {view.position}, where the data has nothing"
    return None


def _later_view(known: Known, *said: ViewId) -> str | None:
    last = 0 if known.view is None else known.view.id
    later = next((one for one in said if one > last), None)
    return None if later is None else f"view {later}, and the last one is {last}"


def _in_view(known: Known, said: ViewId) -> str | None:
    view = known.view
    if view is not None and said == view.id and view.rank(known.member) is None:
        return f"it is no member of view {said}"
    return _later_view(known, said)


def _bad_report(known: Known, report: Report) -> str | None:
    if report.state is None or report.position is None:
        is_blank = report.state is None and report.position is None and not report.holds
        return None if is_blank else "a state without a position, or something of none"
    lanes = report.position.lanes
    if any(lane >= lanes for lane in report.holds):
        return f"it holds a lane of a step that has {lanes}"
    return _bad_state(known, report.state, report.position)


def _bad_gate(known: Known, state: StateId) -> str | None:
    """Return why no member waits at the gate of a state."""
    if known.view is None or known.schedule is None or state.step == 0:
        return "a gate of a state that nobody has trained"
    if known.schedule.evaluation is None:
        return "a gate, and nothing is evaluated in this job"
    return _later_view(known, ViewId(state.view))


def _bad_part(known: Known, saved: Saved) -> str | None:
    cut = saved.cut
    if cut.state.view > cut.view:
        return f"a state of view {cut.state.view} in view {cut.view}"
    if saved.error:
        return None
    if known.snapshots is None:
        return "a part of a snapshot, and none are made"
    folder = group_draft_of(known.snapshots, cut.view, cut.state.step, passed=cut.passed)
    path = Path(saved.path)
    if path.parent != folder or not path.name.startswith("part-"):
        return f"a part lies at {saved.path[:200]!r}, and it belongs to {folder}"
    if not 0 <= saved.first <= saved.first + saved.length <= saved.size:
        return f"a part of {saved.length:,} bytes from {saved.first:,} on, of {saved.size:,}"
    return None


def _bad_state(known: Known, state: StateId, position: Position) -> str | None:
    if known.view is None or known.schedule is None:
        return "a state, before anybody has one"
    if state.view > known.view.id:
        return _later_view(known, ViewId(state.view))
    if position.lanes > known.most_lanes:
        return f"a step with {position.lanes} lanes, and none had more than {known.most_lanes}"
    resumed = known.resumed
    may_have = (
        known.schedule.may_have(position, state.step)
        if resumed is None
        else known.schedule.may_have(position, state.step, (resumed.position, resumed.state.step))
    )
    if not known.schedule.has(position) or not may_have:
        return f"step {state.step} at {position}, where the data does not come to"
    return None
