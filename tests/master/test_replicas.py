"""How many workers run and when one is started again: events in, instructions out."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.cluster import (
    EVICTED,
    NO_MEMORY,
    RELEASED,
    Blame,
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.control.protocol.frozen import replace
from elasticdl.master.processes.replicas import (
    LONGEST_DELAY,
    Ending,
    Event,
    GiveUp,
    Instruction,
    Joined,
    Launch,
    Leaving,
    Over,
    ReplicaSet,
    Retire,
    Tick,
    Wanted,
    cause_of,
    decide,
    recall,
)


def worker(index: int, life: int = 1) -> ProcessName:
    return ProcessName(Role.WORKER, index, life)


def ended(name: ProcessName, code: int | None = None, by: int | None = None) -> ProcessEnded:
    return ProcessEnded(name, code, by)


class Force:
    """A replica set and a clock."""

    def __init__(self, wanted: int, limit: int = 1) -> None:
        self.state = ReplicaSet(wanted, limit)
        self.now = 0.0

    def __call__(self, event: Event, after: float = 0.0) -> list[Instruction]:
        self.now += after
        self.state, instructions, _ = decide(self.now, self.state, event)
        return list(instructions)


def test_all_are_started_at_once() -> None:
    force = Force(3)
    assert force(Tick()) == [Launch(worker(0)), Launch(worker(1)), Launch(worker(2))]
    assert force(ProcessStarted(worker(0), 7)) == []
    assert force(Tick(), 100) == []


@pytest.mark.parametrize(
    ("code", "by"),
    [(RELEASED, None), (EVICTED, None), (None, signal.SIGKILL), (None, signal.SIGTERM), (None, 40)],
)
def test_what_nobody_can_help_never_counts(code: int | None, by: int | None) -> None:
    force = Force(1, limit=0)
    assert force(Tick()) == [Launch(worker(0))]
    for life in range(1, 30):
        assert force(Joined(worker(0, life)), 1) == []
        assert force(ended(worker(0, life), code, by)) == [Launch(worker(0, life + 1))]


@pytest.mark.parametrize(
    ("code", "by"),
    [
        (0, None),
        (1, None),
        (2, None),
        (126, None),
        *((None, s) for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)),
    ],
)
def test_faults_of_the_program_count_per_worker(code: int | None, by: int | None) -> None:
    force = Force(2, limit=1)
    force(Tick())
    assert force(ended(worker(0), code, by), 20) == [Launch(worker(0, 2))]
    assert force(ended(worker(1), code, by), 20) == [Launch(worker(1, 2))]
    (given_up,) = force(ended(worker(0, 2), code, by), 20)
    assert isinstance(given_up, GiveUp)
    assert given_up.name == worker(0, 2)
    assert "relaunch_on_worker_failure is 1" in given_up.reason
    assert force(ended(worker(1, 2), code, by), 20) == []


def test_only_the_code_of_a_release_proves_that_a_worker_was_to_leave() -> None:
    """Also to the next master, which has told nobody anything."""
    history = [ended(worker(0), RELEASED), ended(worker(0, 2), RELEASED)]
    assert recall(ReplicaSet(1, 1), history, ()).replicas[0].faults == 0
    history = [ended(worker(0), 0), ended(worker(0, 2), 0)]
    assert recall(ReplicaSet(1, 1), history, ()).replicas[0].faults == 2
    assert cause_of(ended(worker(0), RELEASED)) == "released"
    assert cause_of(ended(worker(0), 0)) == "exit code 0"
    # Of a server only: a program may end itself with any code.
    assert cause_of(ended(worker(0), NO_MEMORY)) == f"exit code {NO_MEMORY}"


def test_short_lives_wait_longer_and_longer() -> None:
    force = Force(1)
    force(Tick())
    waited = []
    for life in range(1, 12):
        assert force(ended(worker(0, life), by=signal.SIGKILL)) == []
        began = force.now
        while not force(Tick(), 0.1):
            pass
        waited.append(round(force.now - began, 1))
    assert waited[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6], abs=0.11)
    assert waited[-1] == pytest.approx(30.0, abs=0.2)


def test_people_see_who_waits_after_short_lives() -> None:
    force = Force(3)
    force(Tick())
    for life in (1, 2):
        force(ended(worker(1, life), by=signal.SIGKILL))
        why = f"it starts {0.2 * life:.1f} s after the end of worker-1-{life}, which was short-lived"
        assert force.state.delayed(force.now) == [(worker(1, life + 1), why)]
        force(Tick(), 0.5)
        assert force.state.delayed(force.now) == []
    force(ended(worker(1, 3), by=signal.SIGKILL))
    force(ended(worker(2), by=signal.SIGKILL))
    assert [name for name, _ in force.state.delayed(force.now)] == [worker(1, 4), worker(2, 2)]
    force(Wanted(2))
    assert [name for name, _ in force.state.delayed(force.now)] == [worker(1, 4)]
    force(ProcessEnded(worker(0), None, None, Blame.START, "no such image"), 600.0)
    why = "it starts 0.2 s after the end of worker-0-1, which could not be started"
    assert force.state.delayed(force.now) == [(worker(0, 2), why)]
    force(Over())
    assert force.state.delayed(force.now) == []


def test_a_life_that_joined_forgets_the_short_ones() -> None:
    force = Force(1)
    force(Tick())
    force(ended(worker(0), by=signal.SIGKILL))
    assert force(Tick(), 0.3) == [Launch(worker(0, 2))]
    force(Joined(worker(0, 2)))
    assert force(ended(worker(0, 2), by=signal.SIGKILL)) == [Launch(worker(0, 3))]


def test_scaling_up_and_down() -> None:
    force = Force(2)
    force(Tick())
    assert force(Wanted(4)) == [Launch(worker(2)), Launch(worker(3))]
    assert force(Wanted(1)) == [Retire(worker(3)), Retire(worker(2)), Retire(worker(1))]
    assert force(Wanted(1)) == []
    assert force(ended(worker(3), 0), 20) == []
    assert force(Wanted(4)) == [Launch(worker(3, 2))]
    assert force(ended(worker(1), 0)) == [Launch(worker(1, 2))]


def test_an_ending_job_keeps_one_worker_alive() -> None:
    force = Force(3)
    force(Tick())
    assert force(Ending(stopping=True), 20) == []
    assert force(ended(worker(0), by=9)) == []
    assert force(ended(worker(2), by=9)) == []
    assert force(ended(worker(1), by=9)) == [Launch(worker(0, 2))]
    assert force(Over()) == []
    assert force(ended(worker(0, 2), by=9), 20) == []


def test_all_workers_come_back_if_the_last_state_is_lost_before_the_result_is_written() -> None:
    force = Force(2)
    force(Tick())
    assert force(Ending(stopping=False), 20) == []
    assert force(ended(worker(1), by=9)) == []
    assert force(ended(worker(0), by=9)) == [Launch(worker(0, 2)), Launch(worker(1, 2))]
    force(Ending(stopping=True), 20)
    force(ended(worker(1, 2), by=9))
    assert force(ended(worker(0, 2), by=9)) == [Launch(worker(0, 3))]


def test_history_is_recalled() -> None:
    history: list[ProcessEvent] = [
        ProcessStarted(worker(0), 10),
        ProcessStarted(worker(1), 11),
        ended(worker(1), by=signal.SIGSEGV),
        ProcessStarted(worker(1, 2), 12),
        ended(worker(1, 2), by=signal.SIGKILL),
        ProcessStarted(worker(2), 13),
    ]
    force = Force(2, limit=1)
    force.state = recall(force.state, history, [])
    assert force(Tick()) == [Launch(worker(1, 3)), Retire(worker(2))]
    (given_up,) = force(ended(worker(1, 3), 1), 20)
    assert isinstance(given_up, GiveUp)


def test_an_end_that_is_told_twice_counts_once() -> None:
    force = Force(1, limit=1)
    force(Tick())
    force(ended(worker(0), 1), 20)
    assert force(ended(worker(0), 1)) == []
    assert force.state.replicas[0].faults == 1


names = st.builds(worker, st.integers(0, 3), st.integers(1, 4))
events = st.one_of(
    st.builds(Wanted, st.integers(1, 4)),
    st.builds(Joined, names),
    st.builds(ProcessEnded, names, st.sampled_from([0, 1, 3]), st.none()),
    st.builds(ProcessEnded, names, st.none(), st.sampled_from([9, 15, 11])),
    st.just(Tick()),
    st.builds(Ending, st.booleans()),
)


@given(st.lists(st.tuples(events, st.floats(0, 5)), max_size=60))
def test_no_name_is_launched_twice_and_nobody_wanted_is_forgotten(script: list[tuple[Event, float]]) -> None:
    force = Force(2, limit=1000)
    launched: list[ProcessName] = []
    running: set[ProcessName] = set()
    for event, after in [(Tick(), 0.0), *script, (Tick(), 100.0)]:
        if isinstance(event, ProcessEnded) and event.name not in running:
            continue
        if isinstance(event, ProcessEnded):
            running.remove(event.name)
        for instruction in force(event, after):
            if isinstance(instruction, Launch):
                launched.append(instruction.name)
                running.add(instruction.name)
            if isinstance(instruction, Retire):
                assert instruction.name in running
    assert len(set(launched)) == len(launched)
    assert running == set(force.state.running())
    if force.state.ending:
        assert running
    else:
        assert {name.index for name in running} >= set(range(force.state.wanted))


# ------------------------------------------------------------------ pods


def test_a_worker_that_waits_for_room_is_not_started_again() -> None:
    force = Force(1)
    force(Tick())
    assert force(ProcessPending(worker(0), "0/2 nodes are available"), 1000) == []
    assert force(ProcessStarted(worker(0), None), 1000) == []


@pytest.mark.parametrize("code", [0, 1, 137])
def test_what_the_cluster_does_never_counts(code: int) -> None:
    force = Force(1, limit=0)
    force(Tick())
    for life in range(1, 6):
        force(Joined(worker(0, life)))
        preempted = ProcessEnded(
            worker(0, life), code, None, Blame.CLUSTER, "PreemptionByScheduler: make room"
        )
        assert force(preempted) == [Launch(worker(0, life + 1))]


def test_a_worker_that_is_gone_without_proof_is_replaced_once() -> None:
    force = Force(1, limit=0)
    force(Tick())
    force(Joined(worker(0)))
    assert force(ProcessGone(worker(0))) == [Launch(worker(0, 2))]
    assert force(ProcessEnded(worker(0), None, None, Blame.CLUSTER, "DeletionByPodGC")) == []
    assert force.state.running() == [worker(0, 2)]


def unstartable(name: ProcessName) -> ProcessEnded:
    return ProcessEnded(name, None, None, Blame.START, "ErrImageNeverPull: no such image")


def test_workers_that_can_never_run_fail_the_job_at_once() -> None:
    force = Force(2, limit=5)
    force(Tick())
    assert force(unstartable(worker(1))) == []
    (said,) = force(unstartable(worker(0)))
    assert isinstance(said, GiveUp)
    assert "worker-0-1 can't be started: ErrImageNeverPull: no such image" in said.reason


@pytest.mark.parametrize("runs", [True, False])
def test_one_node_may_lack_what_others_have(runs: bool) -> None:
    force = Force(2, limit=0)
    force(Tick())
    if runs:
        force(ProcessStarted(worker(0), None))
    for life in (1, 2):
        assert force(unstartable(worker(1, life))) == []
        assert force(Tick(), LONGEST_DELAY) == [Launch(worker(1, life + 1))]
    last = force(unstartable(worker(1, 3)))
    assert [type(one) for one in last] == ([] if runs else [GiveUp])


def test_a_worker_that_can_not_be_started_later_is_tried_again_and_again() -> None:
    force = Force(2, limit=0)
    force(Tick())
    force(Joined(worker(0)))

    def bad(life: int) -> ProcessEnded:
        return ProcessEnded(worker(1, life), None, None, Blame.START, "ImagePullBackOff: a registry is away")

    assert force(bad(1), 60) == []
    assert force(Tick(), 1) == [Launch(worker(1, 2))]
    for life in range(2, 12):  # far more often than a program may fail
        assert force(bad(life), 60) == []
        assert force(Tick(), LONGEST_DELAY) == [Launch(worker(1, life + 1))]
    assert force(bad(12), 60) == []
    assert force(Tick(), LONGEST_DELAY - 1) == []


def test_what_earlier_lives_tell_counts_whatever_life_is_known() -> None:
    history: list[ProcessEvent] = [
        ProcessStarted(worker(0, 10), None),  # as a list sorted by text has it
        ended(worker(0, 2), by=signal.SIGSEGV),
        out_of_memory(worker(0, 9), 500),
    ]
    state = recall(ReplicaSet(1, 3, most_memory=1000), history, [worker(0, 10)])
    assert (state.running(), state.replicas[0].faults, state.memory) == ([worker(0, 10)], 1, 750)


def test_names_that_the_cluster_has_forgotten_are_not_used_again() -> None:
    state = recall(ReplicaSet(2, 1), [ProcessStarted(worker(0, 2), None)], [worker(0), worker(1, 3)])
    assert state.running() == [worker(0, 2)]
    assert decide(0.0, state, Tick())[1] == (Launch(worker(1, 4)),)


def test_running_out_of_memory_counts() -> None:
    force = Force(1, limit=1)
    force(Tick())
    force(Joined(worker(0)))
    assert force(ProcessEnded(worker(0), None, 9, Blame.MEMORY, "more memory")) == [Launch(worker(0, 2))]
    force(Joined(worker(0, 2)))
    (said,) = force(ProcessEnded(worker(0, 2), None, 9, Blame.MEMORY, "more memory"))
    assert isinstance(said, GiveUp)


def out_of_memory(name: ProcessName, memory: int) -> ProcessEnded:
    return ProcessEnded(name, None, 9, Blame.MEMORY, "more memory", memory)


def test_who_ran_out_of_memory_gets_more_up_to_the_limit() -> None:
    force = Force(2, limit=0)
    force.state = replace(force.state, most_memory=1000)
    force(Tick())
    force(Joined(worker(0)))
    assert force(out_of_memory(worker(0), 500)) == [Launch(worker(0, 2), 750)]
    force(Joined(worker(0, 2)))
    # the other one had the first amount too: it is not raised twice for that
    force(Joined(worker(1)))
    assert force(out_of_memory(worker(1), 500)) == [Launch(worker(1, 2), 750)]
    assert force(out_of_memory(worker(0, 2), 750)) == [Launch(worker(0, 3), 1000)]
    force(Joined(worker(0, 3)))
    (said,) = force(out_of_memory(worker(0, 3), 1000))
    assert isinstance(said, GiveUp)
    assert "oom_memory_limit" in said.reason


def test_more_memory_is_remembered_by_the_next_master() -> None:
    history = [out_of_memory(worker(0), 500), ProcessStarted(worker(0, 2), None)]
    state = recall(ReplicaSet(2, 0, most_memory=1000), history, [])
    assert decide(0.0, state, Tick())[1] == (Launch(worker(1), 750),)
    assert state.replicas[0].faults == 0


def test_the_list_of_pods_is_the_history() -> None:
    history: list[ProcessEvent] = [
        ProcessEnded(worker(0), None, None, Blame.CLUSTER, "preempted"),
        ProcessPending(worker(0, 2), "no room"),
        ProcessStarted(worker(1), None),
        ProcessGone(worker(2)),
    ]
    state = recall(ReplicaSet(3, 1), history, [])
    assert state.running() == [worker(0, 2), worker(1)]
    assert decide(0.0, state, Tick())[1] == (Launch(worker(2, 2)),)


def test_the_successor_of_a_server_that_leaves_is_there_before_it_ends() -> None:
    force = Force(2)
    force(Tick())
    assert force(Leaving(worker(0)), after=60.0) == [Launch(worker(0, 2))]
    assert force.state.running() == [worker(0), worker(0, 2), worker(1)]
    assert force(Leaving(worker(0))) == []
    assert force(ended(worker(0), 0)) == []
    assert force.state.running() == [worker(0, 2), worker(1)]
    # who is taken away has no successor
    assert force(Wanted(1)) == [Retire(worker(1))]
    assert force(Leaving(worker(1))) == []
