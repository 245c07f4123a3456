"""Which placement follows from a loss, from servers that leave, and from copies that are ready."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.records import (
    CutRecord,
    FailedRecord,
    Journal,
    PlacementRecord,
    ResumedRecord,
    SavedRecord,
)
from elasticdl.master.ps.copies import Copies
from elasticdl.master.ps.placement import Copy
from elasticdl.master.ps.placementplan import PlacementPlan
from elasticdl.spec.jobspec import PsRestore
from tests.master.models import model_of
from tests.master.pscore import A, B, C, placed, server

FEWER, MORE = Done(TaskNumber(2)), Done(TaskNumber(5))


def plan(journal: Journal, **changes: Any) -> PlacementPlan:
    same: dict[str, Any] = {
        "joined": (),
        "leaving": set(),
        "pressed": set(),
        "copies": Copies(),
        "replicas": 2,
    }
    same |= {"restore": PsRestore.REDO, "accumulates": False}
    return PlacementPlan(journal=journal, **same | changes)


def entries_of(record: PlacementRecord | FailedRecord) -> dict[int, Entry]:
    assert isinstance(record, PlacementRecord)
    return dict(record.entries)


def test_slots_of_a_job_that_continues_are_restored_and_copied_afterwards() -> None:
    record = ResumedRecord(7, "/checkpoints/7", FEWER, 3, None, model_of(2))
    journal = Journal().with_record(record)
    first = plan(journal, joined=(server(0), server(1))).first()
    assert entries_of(first) == {0: Entry(1, 1, A, None, 3), 1: Entry(1, 1, B, None, 3)}


def test_an_only_copy_that_is_lost_takes_the_job_back_to_its_snapshot() -> None:
    saved = SavedRecord(1, "/s/1"), CutRecord(1, FEWER, 0)
    journal = placed(Entry(1, 1, A, None), Entry(1, 1, B, None), roll_back=4, done=MORE, saved=saved)
    record = plan(journal).after_losses(frozenset({A}))
    assert isinstance(record, PlacementRecord)
    assert (record.gone, record.position) == ((A,), FEWER)
    assert entries_of(record) == {0: Entry(2, 2, C, None, 5)}
    skips = plan(journal, restore=PsRestore.SKIP).after_losses(frozenset({A}))
    assert isinstance(skips, PlacementRecord)
    assert skips.position == MORE


def test_where_gradients_are_summed_up_all_slots_go_back_together() -> None:
    journal = placed(Entry(1, 1, A, None), Entry(1, 1, B, None))
    both = {0: Entry(2, 2, C, None, 1), 1: Entry(2, 2, B, None, 1)}
    assert entries_of(plan(journal, accumulates=True).after_losses(frozenset({A}))) == both


@pytest.mark.parametrize("backup", [None, B])
def test_a_job_that_would_rather_stop_does_so_for_an_only_copy_alone(backup: Any) -> None:
    journal = placed(Entry(1, 1, A, backup), Entry(1, 1, C, B))
    record = plan(journal, restore=PsRestore.STOP).after_losses(frozenset({A}))
    assert isinstance(record, FailedRecord) == (backup is None)


def test_nothing_is_said_of_a_loss_while_nobody_could_take_the_slots() -> None:
    journal = placed(Entry(1, 1, A, None), servers=1)
    assert plan(journal).after_losses(frozenset({A})) == PlacementRecord()
    record = plan(journal, joined=(server(1),)).after_losses(frozenset({A}))
    assert entries_of(record) == {0: Entry(2, 2, B, None, 1)}


def test_a_loss_voids_copies_to_the_lost_where_nothing_else_becomes_of_their_slots() -> None:
    journal = placed(Entry(1, 1, A, C), Entry(1, 1, B, A))
    copies = Copies(under_way={0: Copy(0, 1, B, False), 1: Copy(1, 1, C, True)})
    record = plan(journal, copies=copies).after_losses(frozenset({B}))
    assert entries_of(record) == {0: Entry(2, 1, A, C), 1: Entry(2, 2, A, None)}
    record = plan(journal, copies=copies).after_losses(frozenset({C}))
    assert entries_of(record) == {0: Entry(2, 1, A, None), 1: Entry(2, 1, B, A)}
    record = plan(journal, copies=copies).after_losses(frozenset({B, C}))
    assert entries_of(record) == {0: Entry(2, 1, A, None), 1: Entry(2, 2, A, None)}


def test_a_server_that_is_empty_goes_and_takes_no_copy_along() -> None:
    journal = placed(Entry(1, 1, A, B))
    copies = Copies(under_way={0: Copy(0, 1, C, False)})
    record = plan(journal, leaving={C}, copies=copies).improved()
    assert record.gone == (C,)
    assert entries_of(record) == {0: Entry(2, 1, A, B)}
    copies = Copies(ready=(Copy(0, 1, C, False),))
    record = plan(journal, leaving={C}, copies=copies).improved()
    assert entries_of(record) == {0: Entry(2, 1, A, B)}
    stays = plan(journal, copies=copies).improved()
    assert (stays.gone, entries_of(stays)) == ((), {0: Entry(2, 1, A, C)})


def test_a_server_that_leaves_gives_up_its_slots_at_once_only_when_it_waits_for_nobody() -> None:
    journal = placed(Entry(1, 1, B, A), servers=2)
    assert plan(journal, leaving={B}).improved() == PlacementRecord()
    record = plan(journal, leaving={B}, pressed={B}).improved()
    assert entries_of(record) == {0: Entry(2, 2, A, None)}


def test_a_copy_that_is_ready_outdoes_a_backup_that_nobody_wants() -> None:
    journal = placed(Entry(1, 1, A, B))
    copies = Copies(ready=(Copy(0, 1, C, True),))
    record = plan(journal, copies=copies, replicas=1).improved()
    assert entries_of(record) == {0: Entry(2, 2, C, B)}
