"""What workers and servers are told: what they lack, and that once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticdl.control.protocol.messages import MasterMessage
from elasticdl.control.protocol.psmessages import (
    CopiesVoid,
    EndTraining,
    Leased,
    Limits,
    Placed,
    RevokeTask,
    Watermark,
    Workers,
    WriteResult,
)
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.events import Instruction, Tell
from elasticdl.master.core.records import CutRecord, Journal, ResumedRecord, SavedRecord
from elasticdl.master.ps.leases import Lease, Leases
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import Seen
from elasticdl.master.ps.news import LIMITS_TASKS, News
from tests.master.pscore import A, B, C, placed
from tests.master.psrig import member

WORKER, SERVER = "worker-0-1", "ps-0-1"
JOURNAL = placed(Entry(1, 1, A, B), Entry(1, 1, B, A))


def news(journal: Journal = JOURNAL, **changes: Any) -> News:
    same: dict[str, Any] = {"leases": Leases(100, roll_back=journal.roll_back), "low": 0, "copies": {}}
    same |= {"changed_at": (2,) * len(journal.entries), "newest": 2, "seen": {}, "gone": {}}
    same |= {"wanted_servers": 3, "exporter": None, "attempt": 0, "steps": lambda: 40}
    return News(journal=journal, **same | changes)


def tell(news: News, link: Link) -> tuple[Link, list[MasterMessage]]:
    """Return what a connection is told, once: it is told nothing more by the same news."""
    out: list[Instruction] = []

    def told(link: Link) -> Link:
        return news.to_server(1, link, A, out) if link.is_server else news.to_worker(1, link, out)

    link = told(link)
    messages = [one.message for one in out if isinstance(one, Tell)]
    assert told(link) is link
    return link, messages


def of(messages: list[MasterMessage], *kinds: type) -> list[MasterMessage]:
    return [one for one in messages if isinstance(one, kinds)]


def link(name: str) -> Link:
    return Link(member=member(name), name=name)


def test_a_placement_names_the_slots_that_changed_since_the_last_one() -> None:
    known, first = tell(news(), link(WORKER))
    later = news(changed_at=(2, 5), newest=5)
    (before,), (after,) = of(first, Placed), of(tell(later, known)[1], Placed)
    assert isinstance(before, Placed)
    assert isinstance(after, Placed)
    assert [[one.slot for one in placed.entries] for placed in (before, after)] == [[0, 1], [1]]


def test_a_server_hears_that_copies_are_void_to_all_that_may_have_been_lost_before() -> None:
    journal = replace(JOURNAL, servers={A: JOURNAL.servers[A]})
    known, first = tell(news(journal), link(SERVER))
    assert of(first, CopiesVoid) == [CopiesVoid(B), CopiesVoid(C)]
    assert of(tell(news(journal, newest=3), known)[1], CopiesVoid) == []
    assert of(tell(news(journal), link(WORKER))[1], CopiesVoid) == []


def test_tasks_mean_others_until_the_first_snapshot_of_the_job_itself() -> None:
    resumed = ResumedRecord(7, "/c/7", Done(), 1, TaskNumber(4), JOURNAL.model or "")
    cut = CutRecord(8, Done(), 0)
    told = []
    for path in ("/c/7", "/c/8"):
        journal = replace(JOURNAL, resumed=resumed, saved=(SavedRecord(8, path), cut))
        (placed,) = of(tell(news(journal), link(WORKER))[1], Placed)
        assert isinstance(placed, Placed)
        told.append(placed.renumbered)
    assert told == [4, None]


def test_a_worker_is_told_to_let_go_only_of_what_the_watermark_does_not_say() -> None:
    held = replace(link(WORKER), leased=frozenset(map(TaskNumber, (0, 3))))
    leases = Leases(100, Done(TaskNumber(1), (TaskNumber(3),)))
    _, messages = tell(news(leases=leases, low=1), held)
    assert of(messages, Watermark, RevokeTask) == [Watermark(1, 0, ()), RevokeTask(3, 0)]


def test_after_a_roll_back_a_worker_hears_of_all_its_tasks_again() -> None:
    task = TaskNumber(0)
    known, _ = tell(news(leases=Leases(100, held={WORKER: (Lease(task, 1, 0),)})), link(WORKER))
    rolled = Leases(100, roll_back=1, held={WORKER: (Lease(task, 0, 1),)})
    _, messages = tell(news(replace(JOURNAL, roll_back=1), leases=rolled), known)
    assert of(messages, Leased) == [Leased(0, 0, 1)]


def test_a_worker_that_finds_a_new_master_hears_nothing_of_the_tasks_that_it_has() -> None:
    task = TaskNumber(0)
    leases = Leases(100, held={WORKER: (Lease(task, 1, 0),)})
    _, messages = tell(news(leases=leases), replace(link(WORKER), leased=frozenset({task})))
    assert of(messages, Leased, RevokeTask) == []


@pytest.mark.parametrize(
    ("low", "roll_back", "is_told"), [(LIMITS_TASKS - 1, 0, False), (LIMITS_TASKS, 0, True), (0, 1, True)]
)
def test_servers_hear_of_a_watermark_now_and_then(low: int, roll_back: int, is_told: bool) -> None:
    known, _ = tell(news(), link(SERVER))
    _, messages = tell(news(replace(JOURNAL, roll_back=roll_back), low=low), known)
    assert bool(of(messages, Limits)) == is_told


def test_servers_hear_which_workers_there_are_and_not_of_those_that_are_dead() -> None:
    seen = {
        member(name): Seen(name, "", name.startswith("ps"), None, 1, 0.0)
        for name in (WORKER, "worker-1-1", SERVER)
    }
    _, messages = tell(news(seen=seen, gone={"worker-1-1": "killed"}), link(SERVER))
    assert of(messages, Workers) == [Workers((WORKER,))]


def test_one_worker_writes_the_result_of_an_attempt_and_the_others_end() -> None:
    others = link("worker-1-1")
    first = news(exporter=member(WORKER), attempt=1)
    writer, said = tell(first, link(WORKER))
    assert of(said, WriteResult, EndTraining) == [WriteResult(40, 1)]
    other, said = tell(first, others)
    assert of(said, WriteResult, EndTraining) == [EndTraining(40)]
    again = news(exporter=member(WORKER), attempt=2)
    assert of(tell(again, writer)[1], WriteResult) == [WriteResult(40, 2)]
    nobody = news(attempt=2)
    assert of(tell(nobody, other)[1], WriteResult, EndTraining) == []
