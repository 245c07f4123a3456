"""Who is there and who is suspected, by what was heard of each process."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Evicted, ProgramFailed, Released
from elasticdl.control.protocol.psmessages import Enroll
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.events import Beat, Kill
from elasticdl.master.core.machine import Failure, MasterCore
from elasticdl.master.core.records import Journal, WorkersRecord
from elasticdl.master.core.witnesses import Times
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import ACCUSED_SECONDS, SUCCESSOR_SECONDS, Liveness, Seen
from tests.master.pscore import A, B, core_of, placed, server
from tests.master.psrig import member

TIMES = Times()
WORKER, SERVER = "worker-0-1", "ps-0-1"
JOURNAL = placed(Entry(1, 1, A, B), servers=2, epoch=2)
CORE = core_of(JOURNAL)


def enroll(
    liveness: Liveness, now: float, name: str, core: MasterCore = CORE, connection: int = 1, **said: Any
) -> Liveness:
    same: dict[str, Any] = {"epoch": 0, "server": None, "holds": (), "roll_back": 0, "leaving": False}
    message = Enroll(member(name), name, "", **same | said)
    return liveness.enrolled(now, core, connection, message, is_server=name.startswith("ps"))


def beat(liveness: Liveness, now: float, name: str, progress: int = 0, age: float = 0.0) -> Liveness:
    return liveness.beaten(now, Beat(member(name), 0, 0, progress, age), TIMES.heartbeat)


def seen(liveness: Liveness, name: str) -> Seen:
    found = liveness.process(name)
    assert found is not None
    return found


def test_a_process_that_connects_again_is_the_one_that_it_was() -> None:
    liveness = enroll(Liveness(), 1.0, SERVER, epoch=1, leaving=True)
    liveness = liveness.disconnected(3.0, member(SERVER), 1)
    liveness = enroll(liveness, 4.0, SERVER, connection=2, epoch=2, leaving=True, server=0)
    one = seen(liveness, SERVER)
    assert (one.registered_at, one.left_at, one.is_elder) == (1.0, 1.0, True)
    assert (one.connection, one.cut_at, one.server) == (2, None, 0)
    # The end of its earlier connection is heard of late.
    assert liveness.disconnected(5.0, member(SERVER), 1) is liveness


@pytest.mark.parametrize(
    ("epoch", "opened", "is_elder"), [(0, True, False), (1, True, True), (2, True, False), (1, False, True)]
)
def test_who_has_seen_an_earlier_master_was_there_before_this_one(
    epoch: int, opened: bool, is_elder: bool
) -> None:
    core = core_of(replace(JOURNAL, epoch=2 if opened else 1), opened=opened)
    assert Liveness().is_elder(core, member(WORKER), epoch) == is_elder


def test_that_somebody_leaves_counts_from_when_it_was_said_first() -> None:
    liveness = enroll(Liveness(), 0.0, SERVER).leaves(2.0, member(SERVER)).leaves(9.0, member(SERVER))
    assert (seen(liveness, SERVER).leaving, seen(liveness, SERVER).left_at) == (True, 2.0)


@pytest.mark.parametrize(
    ("name", "progress", "age", "connected", "lives"),
    [
        (WORKER, 2, 0.0, True, True),
        (WORKER, 0, 0.0, True, False),  # it beats, and hangs
        (WORKER, 2, 60.0, True, False),  # it did so long ago
        (WORKER, 2, 0.0, False, False),
        (SERVER, 2, 0.0, True, False),  # its slots are others' by now
    ],
)
def test_a_worker_that_was_left_out_and_makes_progress_is_not_killed(
    name: str, progress: int, age: float, connected: bool, lives: bool
) -> None:
    liveness = enroll(Liveness(), 0.0, name).evicted(5.0, name)
    if not connected:
        liveness = liveness.disconnected(6.0, member(name), 1)
    assert (name not in beat(liveness, 7.0, name, progress, age).pending_kills) == lives


def test_who_was_left_out_is_killed_again_each_time_it_had_the_time_to_end() -> None:
    liveness = Liveness().evicted(0.0, WORKER)
    killed = []
    for now in (4.0, 5.0, 6.0, 10.0):
        liveness, kills = liveness.killed(now, alone=5.0)
        killed += [(now, one.worker) for one in kills if isinstance(one, Kill)]
    assert killed == [(5.0, WORKER), (10.0, WORKER)]


def test_an_accusation_lasts_as_long_as_it_is_repeated() -> None:
    liveness = Liveness().with_accused(0.0, (A, 7), JOURNAL.servers.keys())
    liveness = liveness.with_accused(0.8, (A,), JOURNAL.servers.keys())
    assert liveness.accused == {A: (0.0, 0.8)}
    liveness = liveness.with_accused(0.9 + ACCUSED_SECONDS, (A,), JOURNAL.servers.keys())
    assert liveness.accused == {A: (0.9 + ACCUSED_SECONDS, 0.9 + ACCUSED_SECONDS)}


def test_while_nobody_has_found_this_master_nobody_is_missing() -> None:
    liveness, late = Liveness(), 100.0
    assert liveness.lost_servers(late, CORE) == frozenset()
    found = beat(enroll(liveness, late, WORKER), late, WORKER)
    alone = late + 2 * TIMES.alone
    assert found.lost_servers(alone - 0.1, CORE) == frozenset()
    assert found.lost_servers(alone, CORE) == {A, B}


def test_a_server_that_hangs_with_an_only_copy_is_awaited_and_one_that_is_dead_is_not() -> None:
    journal = placed(Entry(1, 1, A, None), servers=1)
    core = core_of(journal)
    liveness = beat(enroll(Liveness(), 0.0, SERVER, server=0), 0.0, SERVER)
    silent = 3 * TIMES.heartbeat + TIMES.alone
    assert liveness.awaited(silent, core) == {A}
    assert liveness.lost_servers(silent, core) == frozenset()
    assert liveness.lost_servers(silent + TIMES.stall, core) == {A}
    assert liveness.lost_servers(silent, core_of(journal, gone={SERVER: "killed"})) == {A}
    broken = liveness.disconnected(silent, member(SERVER), 1)
    assert broken.lost_servers(silent, core) == {A}


@pytest.mark.parametrize(("progress", "is_suspected"), [(1, True), (2, False)])
def test_a_worker_makes_no_progress_only_while_it_has_work_under_way(
    progress: int, is_suspected: bool
) -> None:
    liveness = beat(enroll(Liveness(), 0.0, WORKER), 0.0, WORKER, progress)
    liveness = beat(liveness, TIMES.stall, WORKER, progress)
    assert bool(liveness.suspected_workers(TIMES.stall, CORE)) == is_suspected


def test_a_worker_whose_stream_is_broken_is_lost_although_it_beats() -> None:
    liveness = enroll(Liveness(), 0.0, WORKER).disconnected(1.0, member(WORKER), 1)
    liveness = beat(liveness, 1.0 + TIMES.alone, WORKER)
    assert not liveness.suspected_workers(0.9 + TIMES.alone, CORE)
    assert liveness.suspected_workers(1.0 + TIMES.alone, CORE)


def test_a_server_may_take_its_time_and_a_process_that_was_just_started_beats_late() -> None:
    liveness = beat(enroll(Liveness(), 0.0, SERVER, server=0), 0.0, SERVER, 1)
    liveness = beat(liveness, TIMES.stall, SERVER, 1)
    assert liveness.why_lost(TIMES.stall, CORE, server(0)) is None
    starts = enroll(Liveness(), 0.0, WORKER)
    late = 3 * TIMES.heartbeat + 2 * TIMES.alone
    assert not starts.suspected_workers(late - 0.1, CORE)
    assert starts.suspected_workers(late, CORE)


def test_who_has_failed_leaves_or_is_left_out_has_no_work() -> None:
    liveness = Liveness()
    for index in range(5):
        liveness = enroll(liveness, 0.0, f"worker-{index}-1", connection=index)
    liveness = liveness.leaves(1.0, member("worker-1-1")).evicted(1.0, "worker-2-1")
    failed = Failure("worker-3-1", ProgramFailed("program", "", "", ""), 0.0)
    core = core_of(JOURNAL, failures={member("worker-3-1"): failed}, gone={"worker-4-1": "killed"})
    assert [one.name for one in liveness.workers_at_work(core, lambda _: True)] == ["worker-0-1"]


def test_a_worker_that_left_because_the_job_stops_may_write_its_result() -> None:
    liveness = enroll(Liveness(), 0.0, WORKER).leaves(1.0, member(WORKER))
    stopping = core_of(placed(Entry(1, 1, A, B), stopping="enough"))
    assert not liveness.may_write(CORE, seen(liveness, WORKER))
    assert liveness.may_write(stopping, seen(liveness, WORKER))


def test_a_worker_that_leaves_and_is_left_out_counts_as_left_out() -> None:
    core = core_of(placed(Entry(1, 1, A, B), workers=frozenset({WORKER, "worker-1-1"})))
    liveness = enroll(enroll(Liveness(), 0.0, WORKER), 0.0, "worker-1-1", connection=2)
    liveness = liveness.leaves(1.0, member(WORKER)).leaves(1.0, member("worker-1-1")).evicted(2.0, WORKER)
    assert liveness.wanted_workers(core) == WorkersRecord((), ("worker-1-1",), (WORKER,))


def test_slots_are_for_servers_that_never_had_any_and_stay() -> None:
    liveness = enroll(Liveness(), 0.0, "ps-3-1")
    liveness = enroll(liveness, 0.0, "ps-4-1", leaving=True)
    liveness = enroll(liveness, 0.0, "ps-5-1", server=1)
    assert [one.name for one in liveness.servers_without_number(CORE)] == ["ps-3-1"]


def verdict(liveness: Liveness, name: str, journal: Journal = JOURNAL) -> type | None:
    said = liveness.verdict(journal, Link(member=member(name), name=name))
    return None if said is None else type(said)


def test_a_server_whose_slots_were_given_to_others_ends_and_one_that_waits_for_slots_does_not() -> None:
    name = "ps-5-1"
    assert verdict(enroll(Liveness(), 0.0, name), name) is None
    numbered = enroll(Liveness(), 0.0, name, server=5)
    assert verdict(numbered, name) is Evicted
    assert verdict(numbered.leaves(1.0, member(name)), name) is Released


def test_a_worker_that_leaves_may_go_unless_the_job_stops_and_needs_it_for_the_result() -> None:
    liveness = enroll(Liveness(), 0.0, WORKER).leaves(1.0, member(WORKER))
    assert verdict(liveness, WORKER) is Released
    assert verdict(liveness, WORKER, replace(JOURNAL, stopping="enough")) is None


def test_a_server_that_leaves_waits_for_its_successor_a_while() -> None:
    liveness = enroll(Liveness(), 0.0, SERVER, server=0).leaves(1.0, member(SERVER))
    leaving = liveness.leaving_servers(JOURNAL)
    assert leaving == {A}
    assert liveness.pressed(0.9 + SUCCESSOR_SECONDS, JOURNAL, leaving, 2) == set()
    assert liveness.pressed(1.0 + SUCCESSOR_SECONDS, JOURNAL, leaving, 2) == {A}
    assert liveness.pressed(1.0, JOURNAL, leaving, 1) == {A}  # nobody is to come
