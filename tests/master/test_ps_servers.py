"""Parameter servers that come and leave: slots are copied and handed over."""

from __future__ import annotations

from elasticdl.control.protocol.messages import (
    Released,
)
from elasticdl.control.protocol.psmessages import (
    CopyOrdered,
    CopyReady,
    DrainRequest,
    Leave,
)
from elasticdl.master.core import events
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.records import (
    WantedRecord,
)
from elasticdl.master.ps.liveness import SUCCESSOR_SECONDS
from tests.master.psrig import Rig, copied


def test_a_server_that_leaves_is_emptied_first() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    for _ in range(10):
        rig.tick()
        for name in ("ps-0-1", "ps-1-1", "ps-2-1"):
            for one in rig.heard(name, CopyOrdered):
                rig.say(name, CopyReady(one.slot, one.term, one.to, one.hands_over))
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]
    assert all(0 not in (entry.primary, entry.backup) for entry in rig.master.journal.entries)
    assert rig.master.journal.roll_back == 0


def test_a_copy_to_a_server_that_leaves_before_it_has_anything_is_void() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.connect("ps-3-1")
    rig.tick()
    (copy, *_) = rig.master.slots.copies.under_way.values()
    assert copy.to == 3
    name = f"ps-{rig.master.journal.entries[copy.slot].primary}-1"
    rig.say("ps-3-1", Leave((), 0))
    assert rig.heard("ps-3-1", Released) == [Released("it is empty")]
    assert copy not in rig.master.slots.copies.under_way.values()
    entry = rig.master.journal.entries[copy.slot]
    assert entry.term == copy.term + 1
    # Its end may have been accepted all the same.
    rig.say(name, CopyReady(copy.slot, copy.term, copy.to, copy.hands_over))
    rig.tick()
    assert rig.master.journal.entries[copy.slot] == entry


def test_servers_are_added_and_taken_away() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 4))
    assert rig.journal[-1] == WantedRecord(None, 4)
    assert events.Scale(None, 4) in rig.out
    assert events.Reply(1, "the job wants 4 parameter servers") in rig.out
    rig.connect("ps-2-1")
    rig.connect("ps-3-1")
    copied(rig)
    entries = rig.master.journal.entries
    assert {entry.primary for entry in entries} == {entry.backup for entry in entries} == {0, 1, 2, 3}
    rig.event(events.ScaleAsked(2, None, 2))
    rig.begin()  # the next master knows it, and asks the servers again
    assert rig.master.wanted_servers == 2
    assert events.Scale(None, 2) in rig.out
    for server in range(4):
        rig.connect(f"ps-{server}-1", server=server)
    rig.say("ps-3-1", Leave((), 0))
    rig.say("ps-2-1", Leave((), 0))
    copied(rig)
    for name in ("ps-2-1", "ps-3-1"):
        assert rig.heard(name, Released) == [Released("it is empty")]
    entries = rig.master.journal.entries
    assert {frozenset((entry.primary, entry.backup)) for entry in entries} == {frozenset((0, 1))}
    assert rig.master.journal.roll_back == 0


def test_a_job_that_is_scaled_before_it_begins_waits_for_that_many_servers() -> None:
    rig = Rig()
    rig.event(events.ScaleAsked(1, None, 3))
    rig.start("worker-0-1")
    assert rig.master.journal.entries == ()
    rig.connect("ps-2-1")
    assert {entry.primary for entry in rig.master.journal.entries} == {0, 1, 2}


def test_a_server_is_asked_to_leave_as_often_as_it_takes() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 2))
    assert rig.heard("ps-2-1", DrainRequest) == [DrainRequest()]
    rig.disconnect("ps-2-1")
    rig.connect("ps-2-1", server=2)
    assert rig.heard("ps-2-1", DrainRequest) == [DrainRequest()]
    assert rig.heard("ps-0-1", DrainRequest) == []


def test_the_only_server_hands_over_to_its_successor() -> None:
    rig = Rig(servers=1, replicas=1)
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    copied(rig)
    assert rig.heard("ps-0-1", Released) == []
    rig.connect("ps-0-2")
    copied(rig)
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]
    assert {(entry.primary, entry.backup) for entry in rig.master.journal.entries} == {(1, None)}
    assert rig.master.journal.roll_back == 0


def test_one_of_two_servers_waits_a_while_for_its_successor() -> None:
    rig = Rig()
    rig.start("worker-0-1")
    rig.say("ps-0-1", Leave((), 0))
    rig.tick(SUCCESSOR_SECONDS - 1)
    rig.disconnect("ps-0-1")
    rig.connect("ps-0-1", server=0, leaving=True)  # that does not make it wait longer
    assert all(entry.backup is not None for entry in rig.master.journal.entries)
    rig.tick(2)  # a pod is killed some time after it was asked
    assert {(entry.primary, entry.backup) for entry in rig.master.journal.entries} == {(1, None)}
    assert rig.heard("ps-0-1", Released) == [Released("it is empty")]


def test_a_server_that_scale_takes_away_stays_until_others_have_its_copies() -> None:
    rig = Rig(servers=3)
    rig.start("worker-0-1")
    rig.event(events.ScaleAsked(1, None, 2))
    rig.say("ps-2-1", Leave((), 0))
    rig.tick(1)
    had = [slot for slot, entry in enumerate(rig.master.journal.entries) if entry.names(ServerId(2))]
    rig.die("ps-0-1")
    copied(rig)
    assert rig.heard("ps-2-1", Released) == []
    assert [slot for slot, entry in enumerate(rig.master.journal.entries) if entry.names(ServerId(2))] == had
    rig.connect("ps-0-2")
    copied(rig)
    assert rig.heard("ps-2-1", Released) == [Released("it is empty")]
    assert {frozenset((entry.primary, entry.backup)) for entry in rig.master.journal.entries} == {
        frozenset((1, 3))
    }
    assert rig.master.journal.roll_back == 0
