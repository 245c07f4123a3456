"""The ring from Python: sums, equal bits, and what happens when members die, hang, leave or are told to stop."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl import _core
from elasticdl.errors import Cancelled, RingBroken
from tests.core.members import (
    DIGEST,
    TOKEN,
    TRANSPORTS,
    endpoints,
    group,
    member,
    peers,
    processes,
    side_by_side,
)

SIZES = st.one_of(st.integers(0, 70), st.integers(8_000, 9_000), st.integers(60_000, 300_000))
LARGE = 4 << 20
"""Elements of a message that no socket buffer holds."""


def drawn(random: np.random.Generator, count: int, size: int, dtype: str) -> list[Any]:
    """Draw a contribution for each of some members; one number of them is none, and one is infinite."""
    contributions = [random.standard_normal(size).astype(dtype) for _ in range(count)]
    if size:
        contributions[0][random.integers(size)] = np.nan
        contributions[-1][random.integers(size)] = np.inf
    return contributions


def reduce_all(
    rings: list[_core.Ring], contributions: list[Any], trailers: list[list[float]], step: int = 1
) -> list[Any]:
    results = [np.empty_like(contribution) for contribution in contributions]
    sums = side_by_side(
        *(
            lambda rank=rank: rings[rank].reduce(step, contributions[rank], results[rank], trailers[rank])  # type: ignore[misc]
            for rank in range(len(rings))
        )
    )
    for outcome in sums:
        if isinstance(outcome, Exception):
            raise outcome
    return [(result, total) for result, total in zip(results, sums, strict=True)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 8),
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_every_member_gets_the_same_bits_and_the_sum(
    tmp_path_factory: pytest.TempPathFactory,
    transport: str,
    count: int,
    sizes: list[int],
    dtype: str,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    with group(tmp_path_factory.mktemp("r"), count, transport) as rings:
        for step, size in enumerate(sizes, 1):
            contributions = drawn(random, count, size, dtype)
            before = [contribution.copy() for contribution in contributions]
            trailers = [[float(rank), float("nan") if rank == 0 else 1.0, 0.1] for rank in range(count)]
            outcomes = reduce_all(rings, contributions, trailers, step)
            bits = {(result.tobytes(), np.array(total).tobytes()) for result, total in outcomes}
            assert len(bits) == 1
            expected = before[0].copy()
            for contribution in before[1:]:
                expected += contribution
            np.testing.assert_array_equal(outcomes[0][0], expected)
            assert outcomes[0][1][0] == sum(range(count))
            for contribution, kept in zip(contributions, before, strict=True):
                np.testing.assert_array_equal(contribution, kept)


def test_a_hundred_mebibytes_pass(tmp_path: Path) -> None:
    contributions = [np.full(25 << 20, rank + 1, np.float32) for rank in range(2)]
    with group(tmp_path, 2) as rings:
        for result, _ in reduce_all(rings, contributions, [[], []]):
            assert (result == 3).all()


def test_processes_get_the_same_bits(tmp_path: Path) -> None:
    with processes(tmp_path, 3) as members:
        for process in members:
            process.tell(do="reduce", elements=100_001, dtype="float32", times=20)
        answers = [(process.hear(), process.hear())[1] for process in members]
    assert len({answer["digest"] for answer in answers}) == 1
    assert answers[0]["trailer"] == [3.0, 3.0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_member_is_accused_by_those_in_the_ring(tmp_path: Path, transport: str) -> None:
    with processes(tmp_path, 3, transport=transport) as members:
        for process in members[:2]:
            process.tell(do="reduce", elements=1000, dtype="float32", times=100_000)
        members[2].tell(do="reduce", elements=1000, dtype="float32", times=100_000)
        for process in members:
            process.hear()
        time.sleep(0.2)  # somewhere in the middle of the steps; any moment must do
        killed = time.monotonic()
        os.kill(members[2].process.pid, signal.SIGKILL)
        answers = [process.hear() for process in members[:2]]
    for answer in answers:
        assert (answer["broken"], answer["rank"]) == ("eof", 2), answer
        assert answer["at"] - killed < 5  # not the silence of 30 s; in fact milliseconds


@pytest.mark.parametrize("elements", [1000, 100_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_gave_up_for_another_is_not_accused(tmp_path: Path, transport: str, elements: int) -> None:
    with processes(tmp_path, 3, transport=transport) as members:
        order = {"do": "reduce", "elements": elements, "dtype": "float32"}
        for process in members:
            process.tell(**order)
        for process in members:
            assert "digest" in (process.hear(), process.hear())[1]
        members[2].end()
        # Its contribution and its last word wait unread, and it has closed, before the other one sends anything.
        for process in (members[1], members[0]):
            process.tell(**order)
            answer = (process.hear(), process.hear())[1]
            assert (answer["broken"], answer["rank"]) == ("eof", 2), answer


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_in_mid_transfer_breaks_the_ring_for_all(tmp_path: Path, transport: str) -> None:
    with processes(tmp_path, 3, transport=transport) as members:
        for process in members:
            process.tell(do="reduce", elements=LARGE, dtype="float64", times=1000)
        for process in members:
            process.hear()
        time.sleep(0.3)
        os.kill(members[1].process.pid, signal.SIGKILL)
        answers = [process.hear() for process in (members[0], members[2])]
    assert {answer["broken"] for answer in answers} <= {"eof"}, answers
    assert 1 in {answer["rank"] for answer in answers}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_member_that_stops_in_mid_transfer_is_accused_by_silence(tmp_path: Path, transport: str) -> None:
    with processes(tmp_path, 3, silence=1.0, transport=transport) as members:
        for process in members:
            process.tell(do="reduce", elements=LARGE, dtype="float32", times=10_000)
        for process in members:
            process.hear()
        for _ in range(10):
            time.sleep(0.3)
            os.kill(members[2].process.pid, signal.SIGSTOP)
            try:
                # It may have been stopped between two operations, where waiting is no fault and nobody accuses: then once more.
                if select.select([members[0].process.stdout], [], [], 5.0)[0]:
                    ended = side_by_side(members[0].hear, members[1].hear, limit=20)
                    break
            finally:
                os.kill(members[2].process.pid, signal.SIGCONT)
    assert {(answer["broken"], answer["rank"]) for answer in ended} == {("deadline", 2)}, ended


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_waiting_for_a_contribution_is_no_fault(tmp_path: Path, transport: str) -> None:
    with group(tmp_path, 3, transport, silence=1.5) as rings:
        one = np.ones(200_000, np.float32)
        reduce_all(rings, [one] * 3, [[]] * 3)
        late = threading.Event()

        def last() -> list[float]:
            late.wait(4)  # much longer than the silence
            return rings[2].reduce(2, one, np.empty_like(one), [1.0])

        sums = side_by_side(
            lambda: rings[0].reduce(2, one, np.empty_like(one), [1.0]),
            lambda: rings[1].reduce(2, one, np.empty_like(one), [1.0]),
            last,
        )
    assert sums == [[3.0]] * 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cancel_ends_a_blocked_call_and_the_others_notice(tmp_path: Path, transport: str) -> None:
    with group(tmp_path, 3, transport) as rings:
        one = np.ones(10, np.float32)
        reduce_all(rings, [one] * 3, [[]] * 3)
        blocked = threading.Event()

        def wait_for_the_third(rank: int) -> list[float]:
            blocked.set()
            return rings[rank].reduce(2, one, np.empty_like(one), [])

        def cancel() -> None:
            blocked.wait(10)
            rings[0].cancel()

        outcomes = side_by_side(lambda: wait_for_the_third(0), lambda: wait_for_the_third(1), cancel)
        assert isinstance(outcomes[0], Cancelled)
        # A member that leaves on purpose is nobody's suspect.
        assert isinstance(outcomes[1], RingBroken)
        assert (outcomes[1].rank, outcomes[1].how) == (None, "eof")
        with pytest.raises(Cancelled):
            rings[0].reduce(2, one, np.empty_like(one), [])
        with pytest.raises(RingBroken):
            rings[1].reduce(2, one, np.empty_like(one), [])


@pytest.mark.parametrize("elements", [10, 200_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_after_the_contribution_is_noticed(tmp_path: Path, elements: int, transport: str) -> None:
    """The survivor waits for a third member, which is late, and has all that it needs from the dead one."""
    with processes(tmp_path, 3, transport=transport) as members:
        for process in members:
            process.tell(do="reduce", elements=elements, dtype="float32")
        for process in members:
            process.hear()
            process.hear()
        for process in members[:2]:
            process.tell(do="reduce", elements=elements, dtype="float32")
            process.hear()
        time.sleep(0.3)  # its contribution is on its way; the outcome is the same if it is not
        members[0].process.kill()
        answer = members[1].hear()
    assert (answer["broken"], answer["rank"]) == ("eof", 0), answer


def test_a_blocked_call_leaves_the_interpreter_to_others(tmp_path: Path) -> None:
    with group(tmp_path, 2) as rings:
        one = np.ones(10, np.float32)
        counted = 0

        def count() -> None:
            nonlocal counted
            while counted < 100_000:
                counted += 1
            rings[1].reduce(1, one, np.empty_like(one), [])

        outcomes = side_by_side(lambda: rings[0].reduce(1, one, np.empty_like(one), [2.0]), count)
        assert isinstance(outcomes[0], Exception)  # trailers of different lengths
        assert counted == 100_000


def test_a_signal_handler_runs_while_a_call_blocks(tmp_path: Path) -> None:
    class Ringing(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Ringing

    with group(tmp_path, 2) as rings:
        before = signal.signal(signal.SIGUSR1, handler)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        try:
            timer.start()
            with pytest.raises(Ringing):
                rings[1].reduce(1, np.ones(4), np.empty(4), [])
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_member_that_leaves_after_its_step_tears_nothing(tmp_path: Path, transport: str) -> None:
    """The first to finish closes at once, while the others still receive from it; all must finish."""
    for _ in range(5):
        with processes(tmp_path, 3, transport=transport) as members:
            for process in members:
                process.tell(do="reduce", elements=300_000, dtype="float64")
                process.tell(do="close", linger=True)
            answers = [(process.hear(), process.hear(), process.hear()) for process in members]
        assert len({answer[1].get("digest", str(answer)) for answer in answers}) == 1, answers


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_member_that_has_left_breaks_the_next_step_without_accusation(
    tmp_path: Path, transport: str
) -> None:
    with group(tmp_path, 2, transport) as rings:
        one = np.ones(10, np.float32)
        reduce_all(rings, [one] * 2, [[]] * 2)
        rings[0].close(True)
        with pytest.raises(RingBroken) as broken:
            rings[1].reduce(2, one, np.empty_like(one), [])
        assert broken.value.rank is None


@pytest.mark.parametrize("transport", [one for one in TRANSPORTS if one != "unix"])
def test_a_member_that_seals_before_its_first_step_is_not_accused(tmp_path: Path, transport: str) -> None:
    ends = endpoints(tmp_path, 2, transport)
    try:
        for end in ends:
            end.enter(1, DIGEST)
        dialer, other = (_core.Ring(end, 1, DIGEST, rank, peers(ends), 30.0) for rank, end in enumerate(ends))
        one = np.ones(10, np.float32)
        errors: list[RingBroken] = []

        def step() -> None:
            with pytest.raises(RingBroken) as broken:
                dialer.reduce(1, one, np.empty_like(one), [])
            errors.append(broken.value)

        thread = threading.Thread(target=step)
        thread.start()
        # It says which congestion control is in force once a connection stands.
        while "/" not in dialer.transport:
            assert thread.is_alive()
            time.sleep(0.001)
        ends[1].seal(1)
        thread.join()
        assert errors[0].rank is None, errors[0]
        other.close(False)
    finally:
        for end in ends:
            end.close()


def test_no_listener_is_refused_after_the_silence(tmp_path: Path) -> None:
    with _closing(_core.Endpoint(f"unix:{tmp_path}/0", member(0), TOKEN)) as endpoint:
        endpoint.enter(1, DIGEST)
        ring = _core.Ring(
            endpoint, 1, DIGEST, 0, [(member(0), endpoint.address), (member(1), f"unix:{tmp_path}/1")], 0.3
        )
        with pytest.raises(RingBroken) as broken:
            ring.reduce(1, np.ones(4), np.empty(4), [])
        assert (broken.value.rank, broken.value.how) == (1, "refused")


def test_a_listener_that_comes_late_is_found(tmp_path: Path) -> None:
    addresses = [(member(rank), f"unix:{tmp_path}/{rank}") for rank in range(2)]
    first = _core.Endpoint(addresses[0][1], member(0), TOKEN)
    first.enter(1, DIGEST)
    ring = _core.Ring(first, 1, DIGEST, 0, addresses, 20.0)

    def late() -> list[float]:
        time.sleep(0.3)
        second = _core.Endpoint(addresses[1][1], member(1), TOKEN)
        second.enter(1, DIGEST)
        return _core.Ring(second, 1, DIGEST, 1, addresses, 20.0).reduce(1, np.ones(4), np.empty(4), [2.0])

    assert side_by_side(lambda: ring.reduce(1, np.ones(4), np.empty(4), [1.0]), late) == [[3.0], [3.0]]
    first.close()


def test_a_member_that_has_not_entered_the_view_is_waited_for(tmp_path: Path) -> None:
    """Longer than the silence: its view is on the way."""
    ends = endpoints(tmp_path, 2)
    ends[0].enter(2, DIGEST)
    ends[1].enter(1, 7)
    rings = [_core.Ring(end, 2, DIGEST, rank, peers(ends), 0.3) for rank, end in enumerate(ends)]

    def late() -> list[float]:
        time.sleep(0.8)
        ends[1].enter(2, DIGEST)
        return rings[1].reduce(1, np.ones(4), np.empty(4), [2.0])

    assert side_by_side(lambda: rings[0].reduce(1, np.ones(4), np.empty(4), [1.0]), late) == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("prepare", "how", "rank"),
    [
        (lambda end: end.seal(1), "stale", None),
        (lambda end: end.enter(2, DIGEST), "stale", None),
        (lambda end: end.enter(1, DIGEST + 1), "refused", 1),
    ],
)
def test_other_views_are_turned_away(tmp_path: Path, prepare: Any, how: str, rank: int | None) -> None:
    ends = endpoints(tmp_path, 2)
    ends[0].enter(1, DIGEST)
    prepare(ends[1])
    ring = _core.Ring(ends[0], 1, DIGEST, 0, peers(ends), 5.0)
    with pytest.raises(RingBroken) as broken:
        ring.reduce(1, np.ones(4), np.empty(4), [])
    assert (broken.value.how, broken.value.rank) == (how, rank)
    assert ends[1].refused == 1


def test_another_step_is_stale(tmp_path: Path) -> None:
    with group(tmp_path, 2) as rings:
        outcomes = side_by_side(
            lambda: rings[0].reduce(1, np.ones(4), np.empty(4), []),
            lambda: rings[1].reduce(2, np.ones(4), np.empty(4), []),
        )
        assert {type(outcome) for outcome in outcomes} == {RingBroken}
        assert "stale" in {outcome.how for outcome in outcomes}


@pytest.mark.parametrize("sizes", [(4, 5), (4, 100_000), (100_000, 100_001)])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_other_sizes_are_malformed(tmp_path: Path, sizes: tuple[int, int], transport: str) -> None:
    with group(tmp_path, 2, transport) as rings:
        outcomes = side_by_side(
            *(
                lambda rank=rank: rings[rank].reduce(1, np.ones(sizes[rank]), np.empty(sizes[rank]), [])
                for rank in range(2)
            )
        )
        assert {type(outcome) for outcome in outcomes} == {RingBroken}
        assert "malformed" in {outcome.how for outcome in outcomes}


def test_arguments_are_checked(tmp_path: Path) -> None:
    with group(tmp_path, 1) as [ring]:
        ones = np.ones(8, np.float32)
        frozen = np.empty(8, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(TypeError, match="float32 or both float64"):
            ring.reduce(1, ones, np.empty(8, np.float64), [])
        with pytest.raises(TypeError, match="received formats"):
            ring.reduce(1, np.ones(8, np.int32), np.empty(8, np.int32), [])
        with pytest.raises((TypeError, BufferError, ValueError)):
            ring.reduce(1, ones, frozen, [])
        with pytest.raises(ValueError, match="elements"):
            ring.reduce(1, ones, np.empty(9, np.float32), [])
        with pytest.raises(ValueError, match="contiguous"):
            ring.reduce(1, np.ones(16, np.float32)[::2], np.empty(8, np.float32), [])
        with pytest.raises(ValueError, match="overlap"):
            ring.reduce(1, ones, ones, [])
        # None of these ends the ring.
        assert ring.reduce(1, ones, np.empty_like(ones), [1.5]) == [1.5]


def _closing(endpoint: _core.Endpoint) -> Any:
    from contextlib import closing

    return closing(endpoint)
