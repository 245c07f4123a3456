"""What the cluster has said of processes: which of them no node has room for."""

from __future__ import annotations

import pytest

from elasticdl.cluster.cluster import (
    ProcessEnded,
    ProcessEvent,
    ProcessGone,
    ProcessName,
    ProcessPending,
    ProcessStarted,
    Role,
)
from elasticdl.master.processes.observed import Processes

NAME = ProcessName(Role.WORKER, 0, 1)
NO_ROOM = ProcessPending(NAME, "0/2 nodes are available")


@pytest.mark.parametrize(
    "event",
    [
        ProcessPending(NAME, "its node is preparing it", has_room=True),
        ProcessStarted(NAME, None),
        ProcessEnded(NAME, None, 9),
        ProcessGone(NAME),
    ],
)
def test_a_process_has_no_room_until_it_is_placed_or_has_ended(event: ProcessEvent) -> None:
    seen = Processes()
    seen.take(1.0, NO_ROOM)
    assert seen.without_room == {str(NAME)}
    seen.take(2.0, event)
    assert not seen.without_room


def test_a_process_that_its_node_prepares_has_room() -> None:
    seen = Processes()
    seen.take(1.0, ProcessPending(NAME, "its node is preparing it", has_room=True))
    assert not seen.without_room
    assert seen.waits_for(2.0, str(NAME), 60.0) == "its node is preparing it"


def test_only_workers_without_room_count() -> None:
    seen = Processes()
    seen.take(1.0, ProcessPending(ProcessName(Role.PS, 0, 1), "0/2 nodes are available"))
    assert not seen.without_room
