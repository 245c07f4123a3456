"""Which placement follows from a loss, from servers that leave, and from copies that are ready."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.records import (
    FailedRecord,
    Journal,
    PlacementRecord,
)
from elasticdl.master.ps.copies import Copies
from elasticdl.master.ps.placement import Copy
from elasticdl.master.ps.placementplan import PlacementPlan
from elasticdl.spec.jobspec import PsRestore
from tests.master.pscore import A, B, C, placed

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


@pytest.mark.parametrize("backup", [None, B])
def test_a_job_that_would_rather_stop_does_so_for_an_only_copy_alone(backup: Any) -> None:
    journal = placed(Entry(1, 1, A, backup), Entry(1, 1, C, B))
    record = plan(journal, restore=PsRestore.STOP).after_losses(frozenset({A}))
    assert isinstance(record, FailedRecord) == (backup is None)


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


def test_a_copy_that_is_ready_outdoes_a_backup_that_nobody_wants() -> None:
    journal = placed(Entry(1, 1, A, B))
    copies = Copies(ready=(Copy(0, 1, C, True),))
    record = plan(journal, copies=copies, replicas=1).improved()
    assert entries_of(record) == {0: Entry(2, 2, C, B)}
