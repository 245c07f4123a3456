"""Placement: what a loss makes necessary, and that copies lead to two copies of everything, evenly spread."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.ps.placement import (
    FROZEN_LIMIT,
    Copy,
    after_loss,
    all_restored,
    at_once,
    first,
    is_empty,
    next_copies,
    outcome,
)


def servers(*numbers: int) -> list[ServerId]:
    return [ServerId(number) for number in numbers]


A, B, C = servers(0, 1, 2)


def test_the_first_placement_spreads_backups_over_the_others() -> None:
    entries = first(servers(0, 1, 2), 6, replicas=2)
    assert [(entry.primary, entry.backup) for entry in entries] == [
        (0, 1),
        (1, 2),
        (2, 0),
        (0, 2),
        (1, 0),
        (2, 1),
    ]
    assert {entry.backup for entry in first(servers(4), 3, replicas=2)} == {None}
    assert {entry.backup for entry in first(servers(4, 5), 3, replicas=1)} == {None}


def test_a_loss_promotes_drops_and_restores() -> None:
    entries = (Entry(1, 1, A, B), Entry(3, 2, B, A), Entry(1, 1, B, C), Entry(1, 1, A, None))
    changed, gone = after_loss(entries, {A}, {B, C}, roll_back=7)
    assert changed == {
        0: Entry(2, 2, B, None),
        1: Entry(4, 2, B, None),
        3: Entry(2, 2, C, None, restored=7),
    }
    assert gone == (3,)


def test_all_slots_are_restored_where_they_are_after_a_loss() -> None:
    entries = [Entry(3, 2, A, None), Entry(1, 1, B, A), Entry(1, 1, A, B), Entry(5, 4, B, None, 1)]
    changed, gone = after_loss(entries, {A}, {B, C}, 2)
    assert gone == (0,)
    assert all_restored(entries, changed, 2) == {
        0: Entry(4, 4, C, None, 2),
        1: Entry(2, 2, B, None, 2),
        2: Entry(2, 2, B, None, 2),
        3: Entry(6, 6, B, None, 2),
    }


def test_both_copies_are_lost() -> None:
    changed, gone = after_loss((Entry(1, 1, A, B),), {A, B}, {C}, roll_back=1)
    assert (changed, gone) == ({0: Entry(2, 2, C, None, restored=1)}, (0,))
    assert after_loss((Entry(1, 1, A, B),), {A, B}, (), roll_back=1) == ({}, (0,))


@pytest.mark.parametrize(
    ("hands_over", "before", "after"),
    [
        (False, Entry(4, 2, A, None), Entry(5, 2, A, C)),
        (False, Entry(4, 2, A, B), Entry(5, 2, A, C)),
        (True, Entry(4, 2, A, B), Entry(5, 5, C, B)),
        (True, Entry(4, 2, A, None), Entry(5, 5, C, A)),
    ],
)
def test_a_copy_that_is_ready(hands_over: bool, before: Entry, after: Entry) -> None:
    assert outcome((before,), Copy(0, 4, C, hands_over)) == after
    assert outcome((before,), Copy(0, 3, C, hands_over)) is None


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 2),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 20),
)
def test_copies_lead_to_what_is_wanted(
    count: int, slots: int, replicas: int, added: int, left: int, limit: int
) -> None:
    entries = list(first(servers(*range(count)), slots, replicas))
    living = set(servers(*range(count + added)))
    leaving = set(servers(*range(min(left, count + added - 1))))
    under_way: dict[int, Copy] = {}
    for _ in range(40 * slots + 40):
        changed = at_once(entries, living, leaving, replicas)
        for slot, entry in changed.items():
            entries[slot] = entry
            under_way.pop(slot, None)
        copies = next_copies(entries, living, leaving, under_way, replicas, limit)
        assert not {copy.slot for copy in copies} & under_way.keys()
        assert len({copy.slot for copy in copies}) == len(copies)
        under_way |= {copy.slot: copy for copy in copies}
        assert len(under_way) <= limit
        assert sum(copy.hands_over for copy in under_way.values()) <= FROZEN_LIMIT
        if not under_way and not changed:
            break
        for copy in list(under_way.values())[: 1 + len(under_way) // 2]:
            after = outcome(entries, under_way.pop(copy.slot))
            assert after is not None
            assert not entries[copy.slot].names(copy.to)
            entries[copy.slot] = after
    else:
        raise AssertionError("copies never end")
    staying = living - leaving
    if staying:
        assert all(is_empty(entries, server) for server in leaving)
    if replicas > 1 and len(staying) > 1:
        assert all(entry.backup is not None for entry in entries)
    if not leaving and len(staying) > 2:
        assert spread(Counter(entry.primary for entry in entries), living) <= 1
        # Where a backup may be depends on the primary, so that not all could be moved.
        assert spread(Counter(entry.backup for entry in entries), living) <= 2


def spread(load: Counter[ServerId | None], living: set[ServerId]) -> int:
    """Return by how much the server that has most has more than the one that has least."""
    return max(load[server] for server in living) - min(load[server] for server in living)


def test_nothing_is_ordered_twice() -> None:
    entries = (Entry(1, 1, A, None), Entry(1, 1, B, None))
    under_way = {0: Copy(0, 1, B, False)}
    assert next_copies(entries, {A, B}, (), under_way, 2, 8) == [Copy(1, 1, A, False)]
    assert next_copies(entries, {A, B}, (), under_way, 2, 1) == []
