"""Processes that hang before they take part, or take too long, are replaced: the decision, and jobs whose workers do."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import FoundModel
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core import events
from elasticdl.master.core.witnesses import Times
from elasticdl.master.processes.starting import (
    Limits,
    Overdue,
    Stage,
    Start,
    explain,
    on_the_way,
    overdue,
    with_beats,
)
from elasticdl.master.running.context import Past
from elasticdl.master.running.ps import PsStrategy
from elasticdl.spec.edge import build, from_arguments

from .conftest import Job
from .psrig import MODEL, Rig
from .test_shell import READER, finished

MEMBER = MemberId("m")
LIMITS = Limits(Times(heartbeat=0.5, alone=5.0, stall=60.0), ready=600.0, data_since=0.0)


def late(now: float, start: Start, limits: Limits = LIMITS) -> list[Overdue]:
    return overdue(now, {"worker-0-1": start}, limits)


def test_a_process_of_which_nothing_was_ever_heard_has_as_long_as_one_that_makes_no_progress() -> None:
    assert late(159.9, Start(since=100.0)) == []
    (found,) = late(160.0, Start(since=100.0))
    assert found == Overdue("worker-0-1", "nothing has been heard of it for 60 s", hangs=True)


def test_silence_counts_as_that_of_a_member() -> None:
    start = Start(since=100.0, member=MEMBER, beat_at=103.0)
    assert late(103.0 + 1.5 + 4.9, start) == []
    (found,) = late(103.0 + 1.5 + 5.0, start)
    assert found.hangs
    assert found.reason == "its heartbeats are missing for 5.0 s"


def test_one_that_sends_heartbeats_has_its_time_to_get_ready() -> None:
    start = Start(since=100.0, member=MEMBER, beat_at=699.9)
    assert late(699.9, start) == []
    (found,) = late(700.0, start)
    assert found == Overdue("worker-0-1", "it is not ready after 600 s (start_seconds)", hangs=False)


def test_whoever_waits_for_the_data_is_not_late() -> None:
    start = Start(since=100.0, member=MEMBER, beat_at=4999.9)
    assert late(5000.0, start, replace(LIMITS, data_since=None)) == []
    assert late(5000.0, start, replace(LIMITS, data_since=4500.0)) == []
    assert late(5100.0, replace(start, beat_at=5100.0), replace(LIMITS, data_since=4500.0)) != []


def test_one_that_waits_for_others_is_never_late_but_may_hang() -> None:
    start = Start(since=100.0, member=MEMBER, beat_at=9999.9, stage=Stage.WAITING)
    assert late(9999.9, start) == []
    (found,) = late(9999.9 + 1.5 + 5.0, start)
    assert found.hangs


def test_who_takes_part_is_judged_by_the_machine() -> None:
    starts = {name: Start(0.0) for name in ("a", "b", "c")}
    after = on_the_way(starts, {"b": Stage.WAITING, "c": Stage.JUDGED})
    assert after == {"a": Start(0.0), "b": Start(0.0, stage=Stage.WAITING)}


def test_a_server_waits_for_its_number_and_a_worker_for_nothing() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "data", "num_ps_pods": 2}))
    strategy, rig = PsStrategy(spec, "job", None, Past((), 0, (), (), ())), Rig()
    for name in ("ps-0-1", "worker-0-1"):
        rig.connect(name)
    assert strategy.stages(rig.master) == {"ps-0-1": Stage.WAITING, "worker-0-1": Stage.JUDGED}
    rig.event(events.DataFound(rig.shards))
    rig.say("worker-0-1", FoundModel(MODEL))
    rig.connect("ps-1-1")
    assert set(strategy.stages(rig.master).values()) == {Stage.JUDGED}


def test_one_that_does_not_end_is_killed_again_after_a_while() -> None:
    start = Start(since=0.0, killed_at=100.0)
    assert late(104.9, start) == []
    assert late(105.0, start) != []


def test_heartbeats_are_known_by_the_member_that_sends_them() -> None:
    starts = {"worker-0-1": Start(0.0, MEMBER), "worker-1-1": Start(0.0)}
    after = with_beats(starts, {MEMBER: 7.0, MemberId("other"): 8.0})
    assert after == {"worker-0-1": Start(0.0, MEMBER, 7.0), "worker-1-1": Start(0.0)}


def test_people_see_how_long_a_start_has_lasted() -> None:
    assert explain(109.0, Start(100.0), 600.0) == ""
    assert explain(145.2, Start(100.0), 600.0) == "for 45 s; it is replaced if it is not ready after 600 s"
    assert explain(145.2, None, 600.0) == ""


def test_workers_that_do_not_get_ready_are_replaced(start: Callable[..., Job], tmp_path: Path) -> None:
    faults = {"worker-1-1": "hang", "worker-2-1": "hang at once", "worker-3-1": "never ready"}
    job = start(
        num_workers=4,
        faults=faults,
        heartbeat_seconds=0.2,
        witness_seconds=1.5,
        stall_seconds=6,
        start_seconds=8,
        step=0.03,
        rows=4000,
    )
    job.happened("replaced", 3)
    assert sorted(event.worker for event in job.of("replaced")) == sorted(faults)
    for name in ("worker-1-2", "worker-2-2", "worker-3-2"):
        job.until(lambda job, name=name: name in [event.worker for event in job.of("joined")])
    summary = finished(job, tmp_path)
    assert summary["members"] == {"joined": 4, "drained": 0, "lost": 0}


def test_a_worker_that_hangs_while_it_waits_for_others_is_replaced(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start(
        num_workers="2:2",
        faults={"worker-1-1": "never ready"},
        heartbeat_seconds=0.2,
        witness_seconds=1.5,
        start_seconds=8,
        rows=4000,
    )
    job.until(lambda job: job.status and "joining" in [worker.state for worker in job.status.workers])
    job.kill("worker-0-1", signal.SIGSTOP)
    first = job.happened("replaced")
    assert first.text.startswith("worker-0-1 is killed while it waits to join: its heartbeats are missing")
    second = job.happened("replaced", 2)
    assert second.text == "worker-1-1 is killed while it starts: it is not ready after 8 s (start_seconds)"
    summary = finished(job, tmp_path)
    assert summary["members"] == {"joined": 2, "drained": 0, "lost": 0}


def test_a_program_that_never_gets_ready_fails_the_job(start: Callable[..., Job]) -> None:
    job = start(num_workers=1, faults={f"worker-0-{life}": "never ready" for life in (1, 2)}, start_seconds=2)
    code, summary = job.end()
    assert code == 1
    assert summary["status"] == "failed"
    assert "worker-0-2 did not get ready in time (start_seconds)" in summary["reason"]
    assert job.launcher.processes() == {}


def test_a_reader_of_the_users_own_is_part_of_a_start(start: Callable[..., Job]) -> None:
    job = start(
        num_workers=1,
        model=READER,
        data_reader_params="rows=40",
        faults={f"worker-0-{life}": "never ready" for life in (1, 2)},
        start_seconds=2,
    )
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "start_seconds" in summary["reason"]
