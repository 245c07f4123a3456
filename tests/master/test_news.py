"""What workers and servers are told: what they lack, and that once."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import MasterMessage
from elasticdl.control.protocol.psmessages import (
    CopiesVoid,
    CopyOrdered,
    DrainRequest,
    EndTraining,
    Limits,
    Watermark,
    Workers,
    WriteResult,
)
from elasticdl.master.core.entry import Entry
from elasticdl.master.core.events import Instruction, Tell
from elasticdl.master.core.records import Journal
from elasticdl.master.ps.leases import Leases
from elasticdl.master.ps.link import Link
from elasticdl.master.ps.liveness import Seen
from elasticdl.master.ps.news import LIMITS_TASKS, News
from elasticdl.master.ps.placement import Copy
from tests.master.pscore import A, B, C, placed
from tests.master.psrig import member

WORKER, SERVER = "worker-0-1", "ps-0-1"
JOURNAL = placed(Entry(1, 1, A, B), Entry(1, 1, B, A))


def news(journal: Journal = JOURNAL, **changes: Any) -> News:
    same: dict[str, Any] = {
        "leases": Leases(100, roll_back=journal.roll_back),
        "low": 0,
        "copies": {},
        "evaluating": {},
    }
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
    assert len(out) == len(messages)
    return link, messages


def of(messages: list[MasterMessage], *kinds: type) -> list[MasterMessage]:
    return [one for one in messages if isinstance(one, kinds)]


def link(name: str) -> Link:
    return Link(member=member(name), name=name)


def test_a_server_hears_that_copies_are_void_to_all_that_may_have_been_lost_before() -> None:
    journal = replace(JOURNAL, servers={A: JOURNAL.servers[A]})
    known, first = tell(news(journal), link(SERVER))
    assert of(first, CopiesVoid) == [CopiesVoid(B), CopiesVoid(C)]
    assert of(tell(news(journal, newest=3), known)[1], CopiesVoid) == []
    assert of(tell(news(journal), link(WORKER))[1], CopiesVoid) == []


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


def test_a_server_hears_once_that_it_is_to_leave_and_which_copies_it_makes() -> None:
    copies = {0: Copy(0, 1, C, False), 1: Copy(1, 1, C, True)}
    _, messages = tell(news(copies=copies, wanted_servers=0), link(SERVER))
    assert of(messages, DrainRequest, CopyOrdered) == [DrainRequest(), CopyOrdered(0, 1, C, False)]


def test_a_worker_hears_of_a_watermark_once_slots_are_placed() -> None:
    assert of(tell(news(placed()), link(WORKER))[1], Watermark) == []
    assert of(tell(news(), link(WORKER))[1], Watermark) == [Watermark(0, 0, ())]
