"""Snapshots and checkpoints of a synchronous job, as its master has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Cut,
    Exported,
    NextView,
    Report,
    Saved,
    saved_as,
    unsaved_as,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.master.allreduce.steps import EXPORT_LIMITS
from elasticdl.master.core.events import (
    Announce,
    DataFound,
    ManifestWritten,
    Refuse,
    StopAsked,
    Tell,
    Tick,
    WriteGroupManifest,
)
from elasticdl.master.core.records import (
    FinishedRecord,
    ResumedStateRecord,
    SnapshotRecord,
    ViewRecord,
    compact,
    read_journal,
)
from tests.master.grouprig import (
    FIRST,
    MIDDLE,
    RECORD,
    RESULT,
    S1,
    SCHEDULE,
    SHARDS,
    START,
    Control,
    group,
    part,
)


def test_a_state_is_journalled_when_all_of_the_view_have_saved_it_and_the_manifest_is_written() -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    assert control.said == []
    control.say("b", part(1, 2))
    (order,) = control.said
    files = tuple((part(rank, 2).path, 1, 7) for rank in range(2))
    assert order == WriteGroupManifest(1, Path("/snapshots"), FIRST, MIDDLE, "head", files)
    control.give(ManifestWritten(1, "", cut=FIRST))
    assert control.journal[-1] == RECORD
    assert control.told("a") == control.told("b") == [Acknowledged(saved_as(FIRST))]
    # the same one again, perhaps to another master, is acknowledged and not journalled again
    control.say("a", part(0, 2))
    assert control.said == [Tell(ord("a"), Acknowledged(saved_as(FIRST)))]


@pytest.mark.parametrize("lasting", [True, False], ids=["a checkpoint", "a snapshot"])
def test_what_the_view_has_not_saved_when_it_ends_is_given_up(lasting: bool) -> None:
    """People hear of checkpoints, for which they have asked; a snapshot that is missing costs a job nothing."""
    control = group("a", "b", lasting=lasting)
    control.join("c")
    control.say("a", part(0, 2)), control.say("b", part(1, 2))
    for letter in "ab":
        control.seal(letter)
    said = [one.text for one in control.announced(EventKind.UNSAVED)]
    step_1 = "checkpoint of step 1 is given up: the group has changed meanwhile; the next one follows"
    assert said == ([step_1] if lasting else [])
    control.give(ManifestWritten(1, "", cut=FIRST))
    control.say("a", part(0, 2))
    assert control.said == []
    assert not any(isinstance(record, SnapshotRecord) for record in control.journal)


def test_a_part_that_can_not_be_written_gives_the_state_up_for_all() -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    control.say("b", replace(part(1, 2), error="no space left"))
    assert "no space left" in control.announced(EventKind.UNSAVED)[0].text
    for letter in "ab":
        control.say(letter, part("ab".index(letter), 2))
        assert control.told(letter) == [Acknowledged(unsaved_as(FIRST))]


@pytest.mark.parametrize("changes", [{"head": "other"}, {"first": 2}, {"size": 3}, {"position": START}])
def test_parts_that_make_no_state_are_given_up(changes: dict[str, Any]) -> None:
    control = group("a", "b")
    control.say("a", part(0, 2))
    wrong = replace(part(1, 2), **changes)
    snapshots, _ = control.master.snapshots.reported(control.view, MemberId("b"), wrong)
    after, (said,) = snapshots.completed(control.master.journal)
    assert FIRST in after.spoilt
    assert isinstance(said, Announce)
    assert said.kind == EventKind.UNSAVED


def test_a_job_goes_on_from_a_checkpoint_before_anybody_begins_anew() -> None:
    path, state = "/earlier/checkpoint-4/manifest.json", StateId(5, 0)
    record = ResumedStateRecord(4, path, state, MIDDLE, False)
    control = Control(resume=lambda *_: record, highest=4, workers=1)
    control.give(DataFound(SHARDS))
    control.join("a")
    assert [type(one) for one in control.journal[-2:]] == [ResumedStateRecord, ViewRecord]
    assert (control.view.base, control.view.position, control.view.snapshot) == (state, MIDDLE, path)
    # another master finds it in the journal, and numbers go on
    other = Control(*control.journal)
    assert other.master.snapshots.number(other.master.journal) == 5
    assert read_journal(compact(control.journal)).resumed_state == record


def test_a_state_of_a_wave_that_an_earlier_job_began_is_believed_later_too() -> None:
    """Its minibatches are of more members than this job ever had."""
    record = ResumedStateRecord(4, "/earlier/checkpoint-4/manifest.json", StateId(1, 0), START, False)
    control = Control(resume=lambda *_: record, highest=4, workers=1, policy_lanes=lambda _: 1)
    control.give(DataFound(SHARDS))
    control.join("a")
    steps, position = [(StateId(1, 0), START)], START
    while position.lanes == START.lanes:
        position = SCHEDULE.advance(position, 1)
        steps.append((StateId(steps[-1][0].step + 1, 1), position))
    control.join("b")
    control.say("a", NextView(Report(ViewId(1), ViewId(1), *steps[-1], frozenset(), False)))
    assert (control.view.id, control.view.position.lanes) == (2, 1)
    for state, position in steps[1:]:
        control.say("a", Saved(Cut(ViewId(1), state, False), position, "", error="no space left"))
        assert not [one for one in control.said if isinstance(one, Refuse)]


def test_the_result_waits_for_the_last_checkpoint_and_not_for_ever() -> None:
    def end() -> Control:
        control = group("a", lasting=True)
        control.give(StopAsked(1, "enough"))
        control.seal("a", StateId(1, 1))
        view = control.view
        assert view.final
        control.say("a", Exported(view.id, S1, RESULT, "digest"))
        assert not any(isinstance(record, FinishedRecord) for record in control.journal)
        return control

    cut = Cut(ViewId(2), S1, False)
    control = end()
    control.say("a", part(view=2))
    control.give(ManifestWritten(1, "", cut=cut))
    assert [type(record) for record in control.journal[-2:]] == [SnapshotRecord, FinishedRecord]
    control = end()
    control.say("a", replace(part(view=2), error="no space left"))
    assert isinstance(control.journal[-1], FinishedRecord)
    control = end()
    control.now += EXPORT_LIMITS * control.master.settings.times.stall
    control.give(Tick(), Tick())
    assert isinstance(control.journal[-1], FinishedRecord)
