"""Copies of slots: which count when they are ready, what a loss does to them, and what people hear."""

from __future__ import annotations

from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core.entry import Entry
from elasticdl.master.ps.copies import Copies
from elasticdl.master.ps.placement import Copy, Situation
from tests.master.pscore import A, B, C

ENTRIES = (Entry(1, 1, A, None), Entry(4, 1, A, B))
ADOPTS, MOVES = Copy(0, 1, C, False), Copy(1, 4, C, True)


def test_a_copy_counts_once_and_on_the_entry_alone_on_which_it_was_ordered() -> None:
    copies = Copies().with_ready(ENTRIES, ADOPTS).with_ready(ENTRIES, ADOPTS)
    assert copies.ready == (ADOPTS,)
    assert copies.with_ready(ENTRIES, Copy(1, 3, C, True)) is copies


def test_people_hear_once_that_copies_begin_and_once_that_all_are_made() -> None:
    heard, copies = [], Copies()
    bare, whole = (Entry(1, 1, A, None), Entry(1, 1, B, None)), (Entry(2, 1, A, B), Entry(2, 1, B, A))
    # One after the other: the second slot is there later; no copy is under way when both are whole.
    for entries in (bare[:1], bare, bare, whole, whole):
        if entries is whole:
            copies = copies.after(whole, {0, 1})
        situation = Situation(entries, frozenset({A, B}), frozenset(), copies.under_way)
        copies, said = copies.ordered(situation, 2, 7)
        heard.append([one.kind for one in said])
    assert heard == [[EventKind.COPYING], [], [], [EventKind.COPIED], []]
