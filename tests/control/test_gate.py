"""Streams between machines: a gate with the job's certificates stands before gRPC."""

from __future__ import annotations

import logging
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.control.protocol import codec
from elasticdl.control.protocol.messages import (
    Data,
    Finished,
    FoundShards,
    NewView,
    Note,
    Welcome,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamOpened,
    StreamReceived,
    StreamRefused,
)
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.control.transport.stream import (
    ControlServer,
    MemberClosed,
    MemberOpened,
)
from elasticdl.control.transport.tls import Identity, read_identity
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadSetting
from tests.control.streams import (
    KEY,
    MEMBER,
    SECONDS,
    SERVER,
    TOKEN,
    Events,
    eventually,
    member,
    next_refusals,
)

JOB, OTHER = make_identities(), make_identities()
AT = "tcp:127.0.0.1:0"


def test_both_ends_show_certificates_of_the_job(close: Callable[[Any], Any]) -> None:
    here = Events()
    job, other = make_identities(), make_identities()
    server = close(ControlServer("tcp:127.0.0.1:0", TOKEN, here, job[Role.MASTER]))
    mine = Events()
    close(MemberStream(server.address, KEY, "worker-0-1", MEMBER, mine, job[Role.WORKER]))
    assert mine.next() == StreamOpened()
    opened = here.next()
    assert isinstance(opened, MemberOpened)
    assert opened.worker == "worker-0-1"
    for stranger in (other[Role.WORKER], None):
        close(MemberStream(server.address, KEY, "worker-1-1", MEMBER, Events(), stranger))
    # a master of another job knows the token and is not believed all the same
    false = close(ControlServer("tcp:127.0.0.1:0", TOKEN, here, other[Role.MASTER]))
    close(MemberStream(false.address, KEY, "worker-2-1", MEMBER, Events(), job[Role.WORKER]))
    # nor is a worker's certificate that of a master
    worker = close(ControlServer("tcp:127.0.0.1:0", TOKEN, here, job[Role.WORKER]))
    close(MemberStream(worker.address, KEY, "worker-3-1", MEMBER, Events(), job[Role.WORKER]))
    close(MemberStream(server.address, KEY, "worker-4-1", MEMBER, Events(), job[Role.WORKER]))
    later = here.next()
    assert isinstance(later, MemberOpened)
    assert later.worker == "worker-4-1"


def test_messages_pass_the_gate(close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(AT, TOKEN, here, JOB[Role.MASTER]))
    stream = close(member(server.address, there, identity=JOB[Role.WORKER]))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    shards = tuple(Shard(f"/a/path/to/a/file/with/records-{n:090d}", 0, n) for n in range(80_000))
    said = [Note(EventKind.NOTE, ViewId(0), step, "x") for step in range(200)]
    for note in said:
        stream.send(note)
    stream.send(FoundShards(shards))
    for number in range(200):
        server.send(connection, Welcome(number))
    server.send(connection, Data(shards))
    assert [here.next().message for _ in said] == said
    assert here.next().message == FoundShards(shards)
    assert [there.next().message for _ in range(200)] == [Welcome(number) for number in range(200)]
    assert there.next().message == Data(shards)
    assert server.refused == 0
    stream.close()
    assert here.next() == MemberClosed(connection)


def test_what_several_members_are_sent_is_encoded_once(
    close: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []
    encode = codec.encode_master
    monkeypatch.setattr(
        codec, "encode_master", lambda message, before: (encoded.append(message), encode(message, before))[1]
    )
    here, seen = Events(), [Events(), Events()]
    server = close(ControlServer(AT, TOKEN, here, JOB[Role.MASTER]))
    for index, events in enumerate(seen):
        member = MemberId(f"{index:032x}")
        close(MemberStream(server.address, KEY, f"worker-{index}-1", member, events, JOB[Role.WORKER]))
        events.until(StreamOpened)
    connections = [here.next().connection, here.next().connection]
    for said in (Welcome(1), Welcome(2)):
        for connection in connections:
            server.send(connection, said)
    for events in seen:
        assert [events.next(), events.next()] == [StreamReceived(Welcome(1)), StreamReceived(Welcome(2))]
    assert encoded == [Welcome(1), Welcome(2)]


def test_of_a_view_a_stream_carries_what_has_changed_since_its_last_one(
    address: str, close: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[tuple[int, int]] = []
    encode = codec.encode_master

    def noted(message: Any, before: View | None) -> Any:
        encoded.append((message.view.id, 0 if before is None else before.id))
        return encode(message, before)

    monkeypatch.setattr(codec, "encode_master", noted)
    peers = tuple(Peer(MemberId(f"{number:032x}"), f"worker-{number}-1", "unix:/a") for number in range(4))

    def view(number: int, members: tuple[Peer, ...]) -> NewView:
        sources = (None,) * len(members)
        return NewView(
            View(ViewId(number), members, StateId(7, 2), Position(0, 1, 1, 0), (0,), (0,), 1, sources)
        )

    views = [view(1, peers), view(2, peers[1:]), view(3, (*peers[2:], peers[0]))]
    here, seen = Events(), [Events(), Events(), Events()]
    server = close(ControlServer(address, TOKEN, here))

    def joins(index: int) -> tuple[int, Any]:
        at = MemberId(f"{index:032x}")
        stream = close(MemberStream(address, KEY, f"worker-{index}-1", at, seen[index]))
        assert seen[index].next() == StreamOpened()
        return here.until(MemberOpened).connection, stream

    (first, _), (second, stream) = joins(0), joins(1)
    for connection in (first, second):
        server.send(connection, views[0])
    for connection in (first, second):
        server.send(connection, views[1])
    assert encoded == [(1, 0), (2, 1)]
    assert [seen[1].next().message for _ in views[:2]] == views[:2]
    stream.close()
    here.until(MemberClosed)
    third, _ = joins(2)
    for connection in (first, third):
        server.send(connection, views[2])
    assert encoded == [(1, 0), (2, 1), (3, 2), (3, 0)], "a new stream carries all of it"
    assert [seen[0].next().message for _ in views] == views
    assert seen[2].next().message == views[2]


def test_a_slow_member_gets_everything_through_the_gate(close: Callable[[Any], Any]) -> None:
    """Also what was sent just before the master's end."""
    here, seen = Events(), Events()

    def slowly(event: Any) -> None:
        time.sleep(0.02)  # the member is to be slower than its master
        seen(event)

    server = ControlServer(AT, TOKEN, here, JOB[Role.MASTER])
    close(MemberStream(server.address, KEY, "worker-0-1", MEMBER, slowly, JOB[Role.WORKER]))
    connection = here.next().connection
    seen.until(StreamOpened)
    sent = [Data(tuple(Shard("x" * 1000, start, n) for n in range(1000))) for start in range(15)]
    for data in sent:
        server.send(connection, data)
    server.send(connection, Finished("done"))
    server.close()
    assert [seen.next() for _ in sent] == list(map(StreamReceived, sent))
    assert seen.next() == StreamReceived(Finished("done"))
    assert seen.next() == StreamClosed()


def test_grpc_is_behind_the_gate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        server = ControlServer(AT, TOKEN, Events(), JOB[Role.MASTER])
        (private,) = Path(folder).iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert [entry.name for entry in private.iterdir()] == ["grpc"]
        with pytest.raises(BadSetting, match="in use"):
            ControlServer(server.address, TOKEN, Events(), JOB[Role.MASTER])
        assert list(Path(folder).iterdir()) == [private]
        server.close()
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (OTHER[Role.WORKER], "perhaps it does not accept this end"),
        (
            Identity(JOB[Role.WORKER].authority, OTHER[Role.WORKER].certificate, OTHER[Role.WORKER].key),
            "not of this job's authority",
        ),
        (JOB[Role.MASTER], "for another role"),
        (None, "not TLS"),
    ],
)
def test_strangers_before_the_gate_are_logged_and_counted(
    shown: Identity | None, why: str, close: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(AT, TOKEN, here, JOB[Role.MASTER]))
    log = RefusalLog(server, "control plane")
    log.look(0.0)
    close(MemberStream(server.address, KEY, "worker-1-1", MEMBER, there, shown))
    eventually(lambda: server.refused)
    log.look(1.0)
    line = caplog.records[0].getMessage()
    assert line.startswith("control plane: connection from 127.0.0.1:")
    assert why in line
    assert there.queue.empty()
    mine = Events()
    close(member(server.address, mine, identity=JOB[Role.WORKER]))
    assert mine.next() == StreamOpened()
    assert isinstance(here.next(), MemberOpened)
    assert here.queue.empty()


def test_who_has_no_certificate_or_says_nothing_is_refused(close: Callable[[Any], Any]) -> None:
    import ssl

    here, there = Events(), Events()
    server = close(ControlServer(AT, TOKEN, here, JOB[Role.MASTER]))
    host, _, port = server.address.removeprefix("tcp:").rpartition(":")
    context = ssl.create_default_context(cadata=JOB[Role.WORKER].authority.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="master.elasticdl") as stranger,
    ):
        assert stranger.selected_alpn_protocol() == "h2"
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            stranger.recv(1)
    assert next_refusals(server) == ["it shows no certificate"]
    with socket.create_connection((host, int(port)), timeout=SECONDS) as silent:
        close(member(server.address, there, identity=JOB[Role.WORKER]))
        assert there.next() == StreamOpened()
        assert server.refused == 1
        assert silent.recv(1) == b""
    assert "did not say who it is" in next_refusals(server)[0]
    assert server.refused == 2


def test_a_wrong_token_is_told_with_its_address(
    close: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = close(ControlServer(AT, TOKEN, Events(), JOB[Role.MASTER]))
    there = Events()
    close(member(server.address, there, b"a guess", JOB[Role.WORKER]))
    assert isinstance(there.next(), StreamRefused)
    assert server.refused == 1
    assert server.refusals() == ([], 0)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("connection from 127.0.0.1:")
    assert line.endswith("refused: the caller does not know the job's token")


SECURE = SERVER.replace(
    "event: print(event, flush=True))",
    "event: print(event, flush=True), read_identity(Path(sys.argv[2])))",
).replace(
    "import sys, threading",
    "import sys, threading\nfrom pathlib import Path\nfrom elasticdl.control.transport.tls import read_identity",
)


def test_a_member_finds_a_restarted_master_behind_its_gate(
    tmp_path: Path, close: Callable[[Any], Any]
) -> None:
    master = JOB[Role.MASTER]
    for name, text in (
        ("ca.crt", master.authority),
        ("tls.crt", master.certificate),
        ("tls.key", master.key),
    ):
        (tmp_path / name).write_bytes(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp:127.0.0.1:{free.getsockname()[1]}"
    there = Events()
    close(member(address, there, identity=JOB[Role.WORKER]))
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SECURE, address, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "bound\n"
        assert there.next() == StreamOpened()
        process.kill()
        assert there.next() == StreamClosed()
        process.communicate()
    close(ControlServer(address, TOKEN, Events(), read_identity(tmp_path)))
    bound = time.monotonic()
    assert there.next() == StreamOpened()
    assert time.monotonic() - bound < 5, "gRPC's own back-off is in the way"
