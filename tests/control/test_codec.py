"""Every message survives the wire unchanged, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import json
import typing
import zlib
from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.control.generated import control_pb2 as wire
from elasticdl.control.protocol import codec
from elasticdl.control.protocol.messages import (
    Data,
    FoundShards,
    Lost,
    MasterMessage,
    MemberMessage,
    NewView,
    StopJob,
)
from elasticdl.control.protocol.status import JobEvent, JobStatus, WorkerStatus
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.shard import Position, Shard

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 2**62)
numbers = st.floats(allow_nan=False)

for kind, strategy in ((str, words), (int, counts), (float, numbers)):
    st.register_type_strategy(kind, strategy)
for value in (Shard, Position, StateId, Peer, View, WorkerStatus):
    st.register_type_strategy(value, st.builds(value))


@pytest.mark.parametrize("kind", typing.get_args(MemberMessage), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_members_say_survives(kind: type, data: st.DataObject) -> None:
    message = data.draw(st.builds(kind))
    sent = codec.encode_member(message).SerializeToString()
    assert codec.decode_member(wire.FromMember.FromString(sent)) == message


@pytest.mark.parametrize("kind", typing.get_args(MasterMessage), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_the_master_says_survives(kind: type, data: st.DataObject) -> None:
    message = data.draw(st.builds(kind))
    sent = codec.encode_master(message).SerializeToString()
    assert codec.decode_master(wire.ToMember.FromString(sent)) == message


@settings(max_examples=50, deadline=None)
@given(seen=st.one_of(st.builds(JobStatus), st.builds(JobEvent)))
def test_what_clients_see_survives(seen: JobStatus | JobEvent) -> None:
    sent = codec.encode_seen(seen).SerializeToString()
    assert codec.decode_seen(wire.Seen.FromString(sent)) == seen


def test_all_of_a_shard_survives() -> None:
    shard = Shard("a", 1, 2, 3, "mark")
    sent = codec.encode_master(Data((shard,))).SerializeToString()
    received = codec.decode_master(wire.ToMember.FromString(sent))
    assert isinstance(received, Data)
    assert astuple(received.shards[0]) == astuple(shard)


def test_the_plan_of_a_loop_survives_both_ways() -> None:
    plan = LoopPlan(1000, 64, 0, shuffle=True, global_batch_size=128, max_step=7, seed=3)
    for message in (FoundShards(plan.shards(), (), plan), FoundShards(plan.shards())):
        sent = codec.encode_member(message).SerializeToString()
        assert codec.decode_member(wire.FromMember.FromString(sent)) == message
    for data in (Data(plan.shards(), (), plan), Data(plan.shards())):
        sent = codec.encode_master(data).SerializeToString()
        assert codec.decode_master(wire.ToMember.FromString(sent)) == data


def a_view() -> View:
    peer = Peer(typing.cast(typing.Any, "a" * 32), "worker-0-1", "unix:/a")
    return View(ViewId(3), (peer,), StateId(7, 2), Position(0, 1, 1, 0), (0,), (0,), 1, (None,))


def test_a_view_keeps_its_digest() -> None:
    decoded = codec.decode_master(codec.encode_master(NewView(a_view())))
    assert isinstance(decoded, NewView)
    assert decoded.view.digest == a_view().digest


def test_a_view_with_another_digest_is_refused() -> None:
    message = codec.encode_master(NewView(a_view()))
    message.view.digest ^= 1
    with pytest.raises(codec.Malformed, match="view 3"):
        codec.decode_master(message)


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"{}", b'{"id": 1}'])
def test_a_view_that_is_none_is_refused(record: bytes) -> None:
    with pytest.raises(codec.Malformed, match="can't be read"):
        codec.decode_master(wire.ToMember(view=wire.NewView(record=zlib.compress(record), digest=0)))


def test_a_view_that_is_cut_off_or_not_packed_is_refused() -> None:
    message = codec.encode_master(NewView(a_view()))
    whole = message.view.record
    for record in (b"", whole[:-1], whole[1:], a_view().canonical):
        message.view.record = record
        with pytest.raises(codec.Malformed, match="can't be read"):
            codec.decode_master(message)


def test_a_view_is_not_unpacked_to_more_than_its_limit() -> None:
    record = zlib.compress(a_view().canonical + bytes(32 * 1024 * 1024))
    with pytest.raises(codec.Malformed, match="more than 16,777,216 bytes"):
        codec.decode_master(wire.ToMember(view=wire.NewView(record=record, digest=0)))


def test_views_of_many_members_are_short() -> None:
    peers = tuple(
        Peer(
            MemberId(f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"),
            f"worker-{number}-1",
            f"tcp:10.1.2.{number % 256}:4000",
        )
        for number in range(1000)
    )
    view = dataclasses.replace(a_view(), members=peers, sources=(None,) * 1000)
    message = codec.encode_master(NewView(view))
    assert codec.decode_master(message) == NewView(view)
    assert message.ByteSize() < len(view.canonical) / 3


def after_a_loss() -> tuple[View, View]:
    """Return a view of a thousand members, and the one without the 500th."""
    peers = tuple(
        Peer(MemberId(f"{number:032x}"), f"worker-{number}-1", f"tcp:10.1.2.3:{number}")
        for number in range(1000)
    )
    view = dataclasses.replace(a_view(), members=peers, sources=(None,) * 1000)
    following = dataclasses.replace(
        view, id=ViewId(4), members=peers[:500] + peers[501:], sources=(None,) * 999
    )
    return view, following


@settings(max_examples=100, deadline=None)
@given(before=st.builds(View), after=st.builds(View), data=st.data())
def test_changes_of_any_view_are_the_view(before: View, after: View, data: st.DataObject) -> None:
    pool = [*before.members, *after.members]
    if pool:
        after = dataclasses.replace(
            after, members=tuple(data.draw(st.lists(st.sampled_from(pool), unique=True)))
        )
    before = dataclasses.replace(before, id=ViewId(before.id + 1))
    sent = codec.encode_master(NewView(after), before).SerializeToString()
    assert codec.decode_master(wire.ToMember.FromString(sent), before) == NewView(after)


def test_what_has_changed_in_a_view_of_many_members_is_short() -> None:
    view, following = after_a_loss()
    message = codec.encode_master(NewView(following), view)
    assert codec.decode_master(message, view) == NewView(following)
    assert message.ByteSize() < codec.encode_master(NewView(following)).ByteSize() / 20


def test_changes_of_another_view_are_refused() -> None:
    view, following = after_a_loss()
    message = codec.encode_master(NewView(following), view)
    for before in (None, following):
        with pytest.raises(codec.Malformed, match="changes of view 3"):
            codec.decode_master(message, before)
    other = dataclasses.replace(view, members=view.members[::-1])
    with pytest.raises(codec.Malformed, match="digest"):
        codec.decode_master(message, other)


@pytest.mark.parametrize(
    "members",
    [[[0, 2]], [[-1, 1]], [[0, 0]], [[0, 1], [0, 1]], [[1, 1]], [[0]], [[0, 1, 1]], [["0", 1]], [0]],
)
def test_members_that_were_not_there_before_are_refused(members: list[typing.Any]) -> None:
    view = a_view()
    body = json.dumps(view.changes(view) | {"members": members}).encode()
    message = wire.NewView(record=zlib.compress(body), digest=view.digest, since=view.id)
    with pytest.raises(codec.Malformed, match="can't be read"):
        codec.decode_master(wire.ToMember(view=message), view)


def test_a_note_of_a_kind_that_there_is_not_is_refused() -> None:
    note = wire.Note(kind="nonsense", text="x")
    with pytest.raises(codec.Malformed, match="'nonsense'"):
        codec.decode_member(wire.FromMember(note=note))


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(codec.Malformed):
        codec.decode_member(wire.FromMember())
    with pytest.raises(codec.Malformed):
        codec.decode_master(wire.ToMember())


def test_what_is_said_at_once_is_one_message() -> None:
    said = [StopJob("one"), Lost(ViewId(1), 2, None, "it broke"), StopJob("three")]
    message = wire.FromMember.FromString(
        codec.joined(list(map(codec.encode_member, said))).SerializeToString()
    )
    assert list(codec.decode_said(message)) == said
    assert list(codec.decode_said(codec.encode_member(said[0]))) == said[:1]


def test_messages_at_once_follow_one_only_and_are_few() -> None:
    one = codec.encode_member(StopJob("x"))
    nested = codec.joined([codec.encode_member(StopJob("x")), codec.joined([one, one])])
    with pytest.raises(codec.Malformed, match="follows another one"):
        list(codec.decode_said(nested))
    many = codec.joined([codec.encode_member(StopJob("x")) for _ in range(codec.MOST_JOINED + 1)])
    with pytest.raises(codec.Malformed, match="64 messages after the first one"):
        list(codec.decode_said(many))
    empty = codec.joined([codec.encode_member(StopJob("x")), wire.FromMember()])
    with pytest.raises(codec.Malformed, match="without any message"):
        list(codec.decode_said(empty))


def test_a_view_as_plain_values_has_all_of_it() -> None:
    view = a_view()
    assert view.to_json() == dataclasses.asdict(view)
    assert list(view.to_json()) == list(dataclasses.asdict(view))
