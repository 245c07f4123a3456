"""The order in which a member prefetches is the order in which its steps consume."""

from hypothesis import given
from hypothesis import strategies as st

from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.worker.allreduce.upcoming import Need, upcoming


def view(schedule: Schedule, members: int, first: tuple[int, ...], wave_lanes: int) -> View:
    peers = tuple(
        Peer(MemberId(f"{rank:032x}"), f"worker-{rank}-1", f"unix:/{rank}") for rank in range(members)
    )
    later = tuple(lane % members for lane in range(max(wave_lanes, len(first))))
    position = schedule.start(len(first))
    return View(ViewId(1), peers, StateId(0, 1), position, first, later, wave_lanes, (None,) * members)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_all_members_together_need_every_chunk_of_every_epoch_once(
    counts: list[int], members: int, wave_lanes: int, max_step_base: int
) -> None:
    shards = [Shard(f"s{i}", 0, count) for i, count in enumerate(counts)]
    schedule = Schedule(Ledger(shards, 8, 3, seed=max_step_base, shuffle=True), 2, 0)
    start = schedule.start(wave_lanes)
    first = tuple(0 for _ in range(start.lanes))
    agreed = view(schedule, members, first, wave_lanes)
    needs = [need for rank in range(members) for need in upcoming(schedule, agreed, rank, start, 1)]
    keys = sorted(need.key for need in needs if need.key is not None)
    ledger = schedule.ledger
    expected = sorted(
        (epoch, id, chunk)
        for epoch in range(2)
        for id in range(ledger.num_tasks)
        for chunk in range(ledger.num_chunks(ledger.task_by_id(epoch, id)))
    )
    assert keys == expected
    assert all(need.lane in agreed.owned(0, need.step, 99) for need in needs if need.step == 1)


def test_a_short_task_gives_needs_without_a_key() -> None:
    schedule = Schedule(Ledger([Shard("a", 0, 4), Shard("b", 0, 2)], 4, 2, seed=0, shuffle=False), 1, 0)
    agreed = view(schedule, 1, (0, 0), 2)
    task_a, task_b = schedule.ledger.task(0, 0), schedule.ledger.task(0, 1)
    assert list(upcoming(schedule, agreed, 0, Position(0, 0, 2, 0), 1)) == [
        Need(1, 0, task_a, 0, (0, 0, 0)),
        Need(1, 1, task_b, 0, (0, 1, 0)),
        Need(2, 0, task_a, 1, (0, 0, 1)),
        Need(2, 1, task_b, 1, None),
    ]
