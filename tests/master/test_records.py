"""The journal's records: their JSON, what they say together, and what compaction keeps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadData
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.recordforms import record_from_json, record_to_json
from elasticdl.master.core.records import (
    CheckpointRecord,
    EpochRecord,
    ErrorRecord,
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Journal,
    KnownRecord,
    LaunchedRecord,
    Record,
    ResumedRecord,
    ResumedStateRecord,
    ShardsRecord,
    SnapshotRecord,
    StoppingRecord,
    ViewRecord,
    WantedRecord,
    WorkersRecord,
    compact,
    read_journal,
)

NUMBERS = st.integers(0, 10**9)
STATES = st.builds(StateId, NUMBERS, NUMBERS)
DONE = st.builds(
    lambda low, above: Done(TaskNumber(low), tuple(TaskNumber(low + 1 + task) for task in sorted(above))),
    NUMBERS,
    st.sets(st.integers(0, 9)),
)
NAMES = st.lists(st.sampled_from(["worker-0-1", "worker-0-2", "worker-1-1"]), max_size=3).map(tuple)
LIVES = st.builds(ProcessName, st.sampled_from(Role), st.integers(0, 2), st.integers(1, 3))
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def view(number: int, *names: str) -> View:
    peers = tuple(Peer(MemberId(n), f"worker-{n}", f"unix:{n}") for n in names or ("a",))
    return View(
        ViewId(number),
        peers,
        StateId(0, 1),
        Position(0, 0, 2, 0),
        (0, 0),
        (0, 0),
        2,
        (None,) * len(peers),
        reason="x",
    )


SHARD = st.builds(Shard, st.text(), NUMBERS, NUMBERS, NUMBERS.map(lambda number: number + 1), st.text())
SHARDS = st.lists(SHARD, max_size=3).map(tuple)
PLANS = st.builds(LoopPlan, NUMBERS, st.just(8), NUMBERS, st.booleans(), NUMBERS, NUMBERS, NUMBERS)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(EpochRecord, NUMBERS),
    st.builds(ShardsRecord, SHARDS, SHARDS, st.none() | PLANS),
    st.builds(
        EvaluatedRecord,
        STATES,
        st.just((("val_loss", 0.5),)),
        st.just(1.5),
        st.integers(0, 9).map(TaskNumber),
    ),
    st.builds(
        lambda n, names, evicted: ViewRecord(view(n, *names), evicted),
        NUMBERS,
        st.sets(st.sampled_from("abcd"), max_size=3).map(sorted),
        NAMES,
    ),
    st.builds(SnapshotRecord, NUMBERS.map(ViewId), STATES, POSITIONS, st.text(), NUMBERS, st.booleans()),
    st.builds(ResumedStateRecord, NUMBERS, st.text(), STATES, POSITIONS, st.booleans()),
    st.builds(CheckpointRecord, st.text()),
    st.builds(WantedRecord, NUMBERS),
    st.builds(ErrorRecord, st.text(), st.text()),
    st.builds(StoppingRecord, st.text()),
    st.builds(
        FinishedRecord, NUMBERS.map(ViewId), STATES, st.text(), st.text(), st.just((("accuracy", 0.5),))
    ),
    st.builds(FailedRecord, st.text(), st.text(), st.text(), st.text()),
    st.builds(LaunchedRecord, st.lists(LIVES, max_size=3).map(tuple)),
    st.builds(WorkersRecord, NAMES, NAMES, NAMES),
    st.builds(KnownRecord, st.just((MemberId("z"),))),
)
RESUMED = st.builds(
    ResumedRecord,
    NUMBERS,
    st.text(),
    DONE,
    st.integers(1, 9),
    st.none() | NUMBERS.map(TaskNumber),
    st.text(),
    NUMBERS,
)


@given(RECORDS | RESUMED)
def test_records_survive_json(record: Record) -> None:
    text = json.dumps(record_to_json(record))
    read = record_from_json(json.loads(text))
    assert read == record
    # equal shards may have different fingerprints
    assert json.dumps(record_to_json(read)) == text


@given(st.lists(RECORDS, max_size=12), st.sampled_from((ViewRecord, WorkersRecord)))
def test_compaction_changes_nothing_that_the_journal_says(records: list[Record], other: type) -> None:
    # a job has views, or workers that take part each for itself
    records = [record for record in records if not isinstance(record, other)]
    whole, short = read_journal(records), read_journal(compact(records), len(records))
    assert replace(short, known=()) == replace(whole, known=())
    assert sorted(short.known) == sorted(whole.known)
    assert len(compact(records)) <= 12 + len(whole.errors) + len(whole.evaluated)


def test_ids_that_ever_stood_in_a_view_are_kept_in_order_of_age() -> None:
    records = [ViewRecord(view(1, "b", "a")), ViewRecord(view(2, "a", "c")), EpochRecord(2)]
    assert tuple(read_journal(compact(records)).known) == ("b", "a", "c")


def test_the_last_life_of_each_process_is_kept_in_whatever_order_they_began() -> None:
    lives = [ProcessName(Role.WORKER, 0, 2), ProcessName(Role.PS, 0, 1), ProcessName(Role.WORKER, 0, 1)]
    records = [LaunchedRecord((life,)) for life in lives]
    for journal in (read_journal(records), read_journal(compact(records))):
        assert set(journal.launched.values()) == set(lives[:2])


def test_a_worker_that_was_evicted_takes_part_when_it_is_heard_of_again() -> None:
    records: list[Record] = [WorkersRecord(joined=("a", "b")), WorkersRecord(left=("b",), evicted=("a",))]
    journal = read_journal(records)
    assert (journal.workers, journal.evicted) == (frozenset(), {"a"})
    journal = journal.with_record(WorkersRecord(joined=("a",)))
    assert (journal.workers, journal.evicted) == ({"a"}, frozenset())


def test_the_next_number_follows_the_last_record_also_after_compaction() -> None:
    journal = read_journal((EpochRecord(1),), length=41)
    assert journal.with_record(EpochRecord(2)) == Journal(length=42, epoch=2)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"type": "nonsense"},
        {"type": "epoch"},
        {"type": "view", "view": 3},
        {"type": "epoch", "epoch": "x"},
    ],
)
def test_anything_else_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(BadData, match="format 6"):
        record_from_json(body)
