"""D11: views without progress end a job after a while, and nothing else does."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Report
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position
from elasticdl.master.allreduce.fruitless import MOST, counted, why_failed
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core.recordforms import record_from_json, record_to_json
from elasticdl.master.core.records import EpochRecord, Fruitless, ViewRecord, compact, read_journal

AT = Position(0, 0, 3, 0)
BASE = StateId(4, 2)


def peer(letter: str) -> Peer:
    return Peer(MemberId(letter), letter, f"unix:{letter}")


def view(number: int, letters: str = "ab", step: int = 4) -> View:
    members = tuple(peer(letter) for letter in letters)
    return View(
        id=ViewId(number), members=members, base=StateId(step, 2), position=AT, first=(0, 0, 0), later=(0, 0, 0), wave_lanes=3,
        sources=(None,) * len(members), final=False, exporter=None, snapshot=None, reason="a connection broke",
    )  # fmt: skip


def standers(*holds: int, draining: bool = False, state: StateId = BASE) -> list[Stander]:
    return [
        Stander(
            peer(letter),
            Report(ViewId(3), ViewId(3), state, AT, frozenset(range(held)), draining),
            stayed=True,
        )
        for letter, held in zip("abc", holds, strict=False)
    ]


def test_views_of_the_same_members_at_the_same_step_are_counted() -> None:
    count = Fruitless()
    for number in range(3, 6):
        count = counted(view(number), count, view(number + 1), standers(1, 0))
    assert count == Fruitless(2, 1), "the first one began with a chunk that was new"


@pytest.mark.parametrize(
    ("after", "with_"),
    [
        (view(4, step=5), standers(0, 0)),
        (view(4, letters="a"), standers(0)),
        (view(4, letters="ac"), standers(0, 0)),
        (view(4), standers(2, 1)),
        (view(4), standers(0, 0, draining=True)),
    ],
    ids=["a step", "one left", "another came", "a chunk was computed", "somebody drains"],
)
def test_progress_begins_the_count_anew(after: View, with_: list[Stander]) -> None:
    assert counted(view(3), Fruitless(40, 2), after, with_).views == 0


def test_chunks_of_another_state_and_chunks_that_come_and_go_are_no_progress() -> None:
    assert counted(view(3), Fruitless(7, 1), view(4), standers(3, 3, state=StateId(3, 1))).views == 8
    count = Fruitless(7, 2)
    for number, held in enumerate((1, 2, 0, 2), start=3):
        count = counted(view(number), count, view(number + 1), standers(held, 0))
    assert count == Fruitless(11, 2)


def test_the_first_view_counts_nothing() -> None:
    assert counted(None, Fruitless(), view(1), standers(0, 0)) == Fruitless()


def test_the_job_fails_with_what_members_said() -> None:
    assert why_failed(view(9), Fruitless(MOST - 1), ()) is None
    why = why_failed(view(9), Fruitless(MOST), ("worker-0-0: cancelled",))
    assert why is not None
    assert "no progress after step 4" in why
    assert "worker-0-0: cancelled" in why


def test_the_count_survives_the_journal_and_its_compaction() -> None:
    records = (EpochRecord(1), ViewRecord(view(7), fruitless=Fruitless(42, 3)))
    read = [record_from_json(record_to_json(record)) for record in compact(records)]
    assert read_journal(read).fruitless == Fruitless(42, 3)
    later = replace(view(8), reason="a worker joins")
    assert read_journal([*read, ViewRecord(later)]).fruitless == Fruitless()
