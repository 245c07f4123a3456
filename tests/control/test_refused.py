"""Who is refused by a master, and by a member, on one machine; and addresses that can't be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Register,
    Report,
    StopJob,
    Welcome,
)
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport import credentials
from elasticdl.control.transport.client import JobClient
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamOpened,
    StreamReceived,
    StreamRefused,
)
from elasticdl.control.transport.stream import (
    ControlServer,
    MemberClosed,
    MemberOpened,
    MemberSaid,
)
from elasticdl.errors import BadSetting, MasterAway
from tests.control.streams import (
    KEY,
    MEMBER,
    TOKEN,
    Events,
    member,
    status,
)


def test_a_wrong_token_is_refused_counted_and_never_tried_again(
    address: str, close: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    stream = close(member(address, there, b"a guess"))
    refused = there.next()
    assert isinstance(refused, StreamRefused)
    assert "token" in refused.reason
    assert not stream.send(StopJob(""))
    with pytest.raises(BadSetting, match="token"):
        close(JobClient(address, b"another guess")).stop("please")
    with pytest.raises(BadSetting, match="token"):
        next(close(JobClient(address, b"another guess")).watch())
    assert server.refused == 3
    assert here.queue.empty()
    assert len([record for record in caplog.records if "refused" in record.message]) == 3


def test_another_version_is_refused_with_both_numbers(
    address: str, close: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Events(), Events()
    close(ControlServer(address, TOKEN, here))
    metadata = credentials.Caller.announcement

    def older(mine: credentials.Caller) -> tuple[tuple[str, str], ...]:
        return tuple((key, "0.0.7" if key == "elasticdl-version" else value) for key, value in metadata(mine))

    monkeypatch.setattr(credentials.Caller, "announcement", older)
    close(member(address, there))
    refused = there.next()
    assert isinstance(refused, StreamRefused)
    assert "0.0.7" in refused.reason
    assert credentials.version() in refused.reason
    assert here.queue.empty()


def test_a_false_master_is_told_nothing(address: str, close: Callable[[Any], Any]) -> None:
    """It may let everybody in, but it can't prove that it knows the token."""
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    admit = credentials.Challenges.admit

    def lie(self: credentials.Challenges, opening: Any, method: str) -> credentials.Admitted:
        return replace(admit(self, opening, method), answer=(("elasticdl-proof", "0" * 64),))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials.Challenges, "admit", lie)
        stream = close(member(address, there))
        refused = there.next()
        assert isinstance(refused, StreamRefused)
        assert not stream.send(
            Register(
                MEMBER, "worker-0-1", "", 0, Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
            )
        )
        server.publish(status(1))
        with pytest.raises(MasterAway):
            close(JobClient(address, TOKEN)).status()


def test_a_malformed_message_ends_its_connection_only(address: str, close: Callable[[Any], Any]) -> None:
    here, there, others = Events(), Events(), Events()
    close(ControlServer(address, TOKEN, here))
    stream, other = close(member(address, there)), close(member(address, others))
    assert isinstance(here.next(), MemberOpened)
    assert isinstance(here.next(), MemberOpened)
    there.until(StreamOpened)
    others.until(StreamOpened)
    from elasticdl.control.generated import control_pb2 as wire

    stream._outbox.put(wire.FromMember())
    here.until(MemberClosed)
    there.until(StreamClosed)
    there.until(StreamOpened)
    here.until(MemberOpened)
    assert other.send(StopJob("still here"))
    assert here.until(MemberSaid).message == StopJob("still here")


def test_who_says_what_can_not_be_is_refused_counted_and_comes_no_more(
    address: str, close: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    here, there, others = Events(), Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    close(member(address, there))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    close(MemberStream(address, KEY, "worker-1-1", MemberId("6" * 32), others))
    other = here.next().connection
    with caplog.at_level(logging.WARNING):
        server.refuse(connection, "worker-0-1 says TaskDone, which can't be: task 10")
        assert there.next() == StreamRefused("worker-0-1 says TaskDone, which can't be: task 10")
        assert here.next() == MemberClosed(connection)
    assert server.refused == 1
    assert "worker-0-1 says TaskDone, which can't be: task 10" in caplog.text
    assert not server.send(connection, Welcome(1))
    assert server.send(other, Welcome(1))
    assert others.until(StreamReceived) == StreamReceived(Welcome(1))


def test_a_taken_port_is_said(close: Callable[[Any], Any]) -> None:
    server = close(ControlServer("tcp:127.0.0.1:0", TOKEN, Events()))
    assert not server.address.endswith(":0")
    with pytest.raises(BadSetting, match="in use"):
        ControlServer(server.address, TOKEN, Events())
    assert close(JobClient(server.address, TOKEN)).stop  # connects on the first call only


@pytest.mark.parametrize(
    "address", ["", "unix:", "tcp:", "tcp:host", "localhost:1", "tcp:0.0.0.0:1", "unix:/" + "x" * 120]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadSetting):
        JobClient(address, TOKEN)


def test_another_machine_is_reached_with_certificates_only() -> None:
    with pytest.raises(BadSetting, match="only with the job's certificates"):
        ControlServer("tcp:0.0.0.0:0", TOKEN, Events())
    with pytest.raises(BadSetting, match="only with the job's certificates"):
        MemberStream("tcp:10.1.2.3:5", KEY, "worker-0-1", MEMBER, Events())
