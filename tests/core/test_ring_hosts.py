"""Rings over several hosts: who meets in memory, who over TCP, and what happens when a first member or another one dies, hangs or leaves.

Hosts are folders here: members whose Unix sockets are in one folder are taken for members of one host.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl import _core
from elasticdl.errors import RingBroken
from tests.core.members import HOSTS, group, processes, side_by_side
from tests.core.test_ring import LARGE, SIZES, drawn, reduce_all

ORDER = {"do": "reduce", "elements": LARGE, "dtype": "float32"}


def of(transport: str) -> str:
    """Return the host of each rank."""
    return transport.partition(":")[2]


def first(transport: str) -> int:
    """Return the first member of the host with the most members, which is not the first host if another has as many."""
    hosts = of(transport)
    return hosts.index(max(sorted(hosts, reverse=True), key=hosts.count))


def last(transport: str) -> int:
    """Return the last member of that host."""
    hosts = of(transport)
    return hosts.rindex(hosts[first(transport)])


def reduce(ring: _core.Ring, step: int, contribution: Any) -> list[float]:
    return ring.reduce(step, contribution, np.empty_like(contribution), [1.0])


VICTIMS = [
    pytest.param(transport, who(transport), id=f"{transport}-{name}")
    for transport in HOSTS
    for who, name in ((first, "first"), (last, "last"))
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hosts=st.text("abcd", min_size=2, max_size=8),
    safe=st.booleans(),
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_every_member_gets_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, hosts: str, safe: bool, sizes: list[int], dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    count = len(hosts)
    with group(tmp_path_factory.mktemp("r"), count, f"{'safe-' * safe}hosts:{hosts}") as rings:
        for step, size in enumerate(sizes, 1):
            contributions = drawn(random, count, size, dtype)
            before = [contribution.copy() for contribution in contributions]
            trailers = [[float(rank), float("nan") if rank == 0 else 1.0, 0.1] for rank in range(count)]
            outcomes = reduce_all(rings, contributions, trailers, step)
            assert len({(result.tobytes(), np.array(total).tobytes()) for result, total in outcomes}) == 1
            precision = 1e-5 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(outcomes[0][0], sum(before), precision, 10 * precision)
            assert outcomes[0][1][0] == sum(range(count))
            for contribution, kept in zip(contributions, before, strict=True):
                np.testing.assert_array_equal(contribution, kept)


@pytest.mark.parametrize("transport", HOSTS)
def test_processes_get_the_same_bits(tmp_path: Path, transport: str) -> None:
    with processes(tmp_path, len(of(transport)), transport=transport) as members:
        for process in members:
            process.tell(do="reduce", elements=1_000_001, dtype="float32", times=20)
        answers = [(process.hear(), process.hear())[1] for process in members]
    assert len({answer["digest"] for answer in answers}) == 1


@pytest.mark.parametrize(("transport", "victim"), VICTIMS)
def test_a_death_in_mid_transfer_is_accused_by_all(tmp_path: Path, transport: str, victim: int) -> None:
    with processes(tmp_path, len(of(transport)), transport=transport) as members:
        for process in members:
            process.tell(**ORDER, times=1000)
        for process in members:
            process.hear()
        time.sleep(0.3)  # somewhere in the middle of the steps; any moment must do
        killed = time.monotonic()
        os.kill(members[victim].process.pid, signal.SIGKILL)
        answers = [process.hear() for rank, process in enumerate(members) if rank != victim]
    for answer in answers:
        assert (answer["broken"], answer["rank"]) == ("eof", victim), answers
        assert answer["at"] - killed < 5  # not the silence of 30 s; in fact milliseconds


@pytest.mark.parametrize(("transport", "victim"), VICTIMS)
def test_a_member_that_stops_in_mid_transfer_is_accused_by_silence(
    tmp_path: Path, transport: str, victim: int
) -> None:
    with processes(tmp_path, len(of(transport)), silence=1.0, transport=transport) as members:
        others = [process for rank, process in enumerate(members) if rank != victim]
        for process in members:
            process.tell(**ORDER, times=10_000)
        for process in members:
            process.hear()
        for _ in range(10):
            time.sleep(0.3)  # somewhere in the middle of the steps; any moment must do
            os.kill(members[victim].process.pid, signal.SIGSTOP)
            try:
                # It may have been stopped between two operations, where waiting is no fault and nobody accuses: then once more.
                if select.select([others[0].process.stdout], [], [], 5.0)[0]:
                    ended = side_by_side(*(process.hear for process in others), limit=20)
                    break
            finally:
                os.kill(members[victim].process.pid, signal.SIGCONT)
    assert {(answer["broken"], answer["rank"]) for answer in ended} == {("deadline", victim)}, ended


@pytest.mark.parametrize(("transport", "victim"), VICTIMS)
def test_a_member_that_is_late_is_waited_for(tmp_path: Path, transport: str, victim: int) -> None:
    count = len(of(transport))
    with group(tmp_path, count, transport, silence=1.2) as rings:
        one = np.ones(LARGE // 4, np.float32)
        reduce_all(rings, [one] * count, [[]] * count)
        never = threading.Event()

        def late(rank: int) -> list[float]:
            if rank == victim:
                never.wait(3)  # much longer than the silence
            return reduce(rings[rank], 2, one)

        sums = side_by_side(*(partial(late, rank) for rank in range(count)))
    assert sums == [[float(count)]] * count


@pytest.mark.parametrize(("transport", "victim"), VICTIMS)
def test_a_member_that_has_left_is_not_accused(tmp_path: Path, transport: str, victim: int) -> None:
    count = len(of(transport))
    with group(tmp_path, count, transport) as rings:
        one = np.ones(LARGE // 4, np.float32)
        reduce_all(rings, [one] * count, [[]] * count)
        rest = [ring for rank, ring in enumerate(rings) if rank != victim]
        waiting = threading.Barrier(len(rest) + 1)

        def wait_for_it(ring: _core.Ring) -> list[float]:
            waiting.wait(20)
            return reduce(ring, 2, one)

        def leave() -> None:
            waiting.wait(20)
            rings[victim].cancel()

        outcomes = side_by_side(*(partial(wait_for_it, ring) for ring in rest), leave)[:-1]
    assert {type(outcome) for outcome in outcomes} == {RingBroken}
    assert {(outcome.rank, outcome.how) for outcome in outcomes} == {(None, "eof")}, outcomes


@pytest.mark.parametrize("transport", HOSTS)
def test_members_that_leave_after_their_step_tear_nothing(tmp_path: Path, transport: str) -> None:
    """Who is through closes at once, while others still need what it sent or wrote; all must finish."""
    for _ in range(3):
        with processes(tmp_path, len(of(transport)), transport=transport) as members:
            for process in members:
                process.tell(do="reduce", elements=300_000, dtype="float64")
                process.tell(do="close", linger=True)
            answers = [(process.hear(), process.hear(), process.hear()) for process in members]
        assert len({answer[1].get("digest", str(answer)) for answer in answers}) == 1, answers


@pytest.mark.parametrize("transport", HOSTS)
def test_who_gave_up_for_another_is_not_accused(tmp_path: Path, transport: str) -> None:
    order = {**ORDER, "elements": 200_000}
    dead = last(transport)
    with processes(tmp_path, len(of(transport)), transport=transport) as members:
        for process in members:
            process.tell(**order)
        for process in members:
            assert "digest" in (process.hear(), process.hear())[1]
        members[dead].end()
        for rank, process in reversed(list(enumerate(members))):
            if rank != dead:
                process.tell(**order)
                answer = (process.hear(), process.hear())[1]
                assert (answer["broken"], answer["rank"]) == ("eof", dead), answer


@pytest.mark.parametrize("sizes", [(200_000, 5), (4, 200_000), (200_000, 200_001)])
@pytest.mark.parametrize(("transport", "victim"), VICTIMS)
def test_other_sizes_are_malformed(
    tmp_path: Path, transport: str, victim: int, sizes: tuple[int, int]
) -> None:
    count = len(of(transport))
    with group(tmp_path, count, transport, silence=5.0) as rings:
        one = np.ones(10)
        # Who gives up before all are connected can't tell those that it has not reached; the master does.
        reduce_all(rings, [one] * count, [[]] * count)
        of_rank = [np.ones(sizes[rank == victim]) for rank in range(count)]
        outcomes = side_by_side(*(partial(reduce, ring, 2, of_rank[rank]) for rank, ring in enumerate(rings)))
    assert {type(outcome) for outcome in outcomes} == {RingBroken}, outcomes
    assert "malformed" in {outcome.how for outcome in outcomes}
