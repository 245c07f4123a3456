"""What of a master's queue is taken at once."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from elasticdl.cluster.cluster import ProcessName, ProcessStarted, Role
from elasticdl.control.protocol.messages import Welcome
from elasticdl.control.transport.stream import MemberClosed, MemberSaid
from elasticdl.master.core.events import Appended, Heard, Tick
from elasticdl.master.core.records import EpochRecord
from elasticdl.master.running.gathering import TOGETHER, may_wait, receive

STARTED = ProcessStarted(ProcessName(Role.WORKER, 0, 1), 1)


def said(number: int) -> Any:
    return MemberSaid(number, Welcome(1))  # type: ignore[arg-type]


def given(*events: Any) -> queue.SimpleQueue[Any]:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for event in events:
        inbox.put(event)
    return inbox


def test_what_members_have_said_is_taken_at_once_up_to_an_event_of_another_kind() -> None:
    inbox = given(said(1), MemberClosed(1), said(2), STARTED, said(3))
    assert receive(inbox, 1.0) == [said(1), MemberClosed(1), said(2), STARTED]
    assert receive(inbox, 1.0) == [said(3)]


def test_an_event_of_another_kind_waits_for_nobody() -> None:
    assert receive(given(STARTED, said(1)), 1.0) == [STARTED]


def test_others_do_not_wait_for_as_much_as_members_can_say() -> None:
    inbox = given(*map(said, range(TOGETHER + 1)))
    assert len(receive(inbox, 1.0)) == TOGETHER


def test_nothing_comes() -> None:
    with pytest.raises(queue.Empty):
        receive(given(), 0.0)


def test_records_and_ticks_wait_for_nothing() -> None:
    assert may_wait(Heard(1, Welcome(1)))  # type: ignore[arg-type]
    assert not may_wait(Tick())
    assert not may_wait(Appended(EpochRecord(1)))
