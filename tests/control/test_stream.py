"""Streams between members and their master: order, what is sent together, and reconnection."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl.control.protocol import codec
from elasticdl.control.protocol.messages import (
    Data,
    Finished,
    FoundShards,
    NextView,
    Note,
    Progress,
    Report,
    StopJob,
    Welcome,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamOpened,
    StreamReceived,
    _outgoing,
)
from elasticdl.control.transport.stream import (
    ControlServer,
    MemberClosed,
    MemberOpened,
    MemberSaid,
)
from elasticdl.data.plan.shard import Position, Shard
from tests.control.streams import (
    KEY,
    MEMBER,
    SECONDS,
    TOKEN,
    Events,
    member,
    serve,
)


def test_messages_go_both_ways_in_order(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    stream = close(member(address, there))
    opened = here.next()
    assert opened == MemberOpened(opened.connection, "worker-0-1", MEMBER)
    assert there.next() == StreamOpened()
    said = [Note(EventKind.NOTE, ViewId(0), step, "x") for step in range(200)]
    assert all(stream.send(note) for note in said)
    assert [here.next() for _ in said] == [MemberSaid(opened.connection, note) for note in said]
    told = [Welcome(number) for number in range(200)]
    assert all(server.send(opened.connection, welcome) for welcome in told)
    assert [there.next() for _ in told] == [StreamReceived(welcome) for welcome in told]
    stream.close()
    assert here.next() == MemberClosed(opened.connection)
    assert not server.send(opened.connection, Welcome(1))
    assert not stream.send(said[0])


def test_a_long_message(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    stream = close(member(address, there))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    shards = tuple(
        Shard(f"/a/rather/long/path/to/a/file/with/records-{number:06d}", 0, number)
        for number in range(80_000)
    )
    stream.send(FoundShards(shards))
    assert here.next() == MemberSaid(connection, FoundShards(shards))
    server.send(connection, Data(shards))
    assert there.next() == StreamReceived(Data(shards))


class Tap:
    """Between a member and its master: carries what they say, and counts HTTP/2's frames by type."""

    PREFACE, HEADER, PING = 24, 9, 6

    def __init__(self, address: str) -> None:
        self._to = address.removeprefix("unix:")
        self.address = f"{address}-tap"
        self.frames: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix("unix:"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self._to)
                for source, sink, preface in ((near, far, self.PREFACE), (far, near, 0)):
                    threading.Thread(target=self._carry, args=(source, sink, preface), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, skip: int) -> None:
        kept = b""
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                kept += piece
                while len(kept) >= skip + self.HEADER:
                    header = kept[skip : skip + self.HEADER]
                    length = skip + self.HEADER + int.from_bytes(header[:3], "big")
                    if len(kept) < length:
                        break
                    self.frames.append(header[3])
                    kept, skip = kept[length:], 0
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_messages_are_not_accompanied_by_pings(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server, tap = close(ControlServer(address, TOKEN, here)), close(Tap(address))
    stream = close(member(tap.address, there))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    for number in range(20):
        stream.send(Note(EventKind.NOTE, ViewId(0), number, "x"))
        assert here.next().message.step == number
        server.send(connection, Welcome(number))
        assert there.next() == StreamReceived(Welcome(number))
    data = tap.frames.count(0)
    assert data >= 40, "the tap has seen what was said"
    assert tap.frames.count(Tap.PING) == 0


def test_what_was_sent_before_an_end_arrives(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = ControlServer(address, TOKEN, here)
    stream = close(member(address, there))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    server.send(connection, Finished("done"))
    server.close()
    assert there.next() == StreamReceived(Finished("done"))
    assert there.next() == StreamClosed()
    assert not stream.send(StopJob(""))
    assert not Path(address.removeprefix("unix:")).exists()


def test_a_member_says_its_last_word(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    close(ControlServer(address, TOKEN, here))
    stream = member(address, there)
    there.until(StreamOpened)
    stream.send(StopJob("last"))
    stream.close()
    assert here.until(MemberSaid).message == StopJob("last")
    here.until(MemberClosed)


def test_a_member_finds_a_restarted_master_at_the_same_address(
    address: str, close: Callable[[Any], Any]
) -> None:
    there = Events()
    close(member(address, there))
    for _ in range(3):
        process = serve(address)
        assert there.next() == StreamOpened()
        process.kill()
        assert there.next() == StreamClosed()
        process.communicate()
    here = Events()
    close(ControlServer(address, TOKEN, here))
    bound = time.monotonic()
    assert there.next() == StreamOpened()
    assert time.monotonic() - bound < 5, "gRPC's own back-off is in the way"


class Relay:
    """A way to a server that can fall silent: its connections stay, and nothing passes any more."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp:").rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._kept: list[socket.socket] = []
        self.silences: list[threading.Event] = []
        """Of each connection; one that is set passes nothing more."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                outer, _ = self._listener.accept()
                inner = socket.create_connection(self._to)
                self._kept += [outer, inner]
                self.silences.append(silent := threading.Event())
                for one, other in ((outer, inner), (inner, outer)):
                    threading.Thread(target=self._pass, args=(one, other, silent), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := one.recv(65536)) and not silent.is_set():
                other.sendall(data)

    def close(self) -> None:
        for one in (self._listener, *self._kept):
            one.close()


def test_a_master_that_is_gone_without_a_word_is_noticed(close: Callable[[Any], Any]) -> None:
    server = close(ControlServer("tcp:127.0.0.1:0", TOKEN, Events()))
    relay = close(Relay(server.address))
    there = Events()
    close(member(relay.address, there))
    assert there.next() == StreamOpened()
    relay.silences[0].set()
    assert there.next() == StreamClosed()
    assert there.next() == StreamOpened()


def test_a_master_has_no_thread_for_each_member(address: str, close: Callable[[Any], Any]) -> None:
    process = serve(address)
    try:
        threads = []
        for count in (2, 32):
            there = Events()
            for index in range(count):
                close(MemberStream(address, KEY, f"worker-{index}-1", MemberId(f"{index:032x}"), there))
            for _ in range(count):
                there.until(StreamOpened)
            threads.append(len(list(Path(f"/proc/{process.pid}/task").iterdir())))
        assert threads[1] - threads[0] < 16
    finally:
        process.kill()
        process.communicate()


def test_a_member_that_does_not_read_holds_up_nobody(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    reads = threading.Event()

    def asleep(event: Any) -> None:
        reads.wait(SECONDS)
        there(event)

    close(MemberStream(address, KEY, "worker-0-1", MEMBER, asleep))
    sleeper = here.next().connection
    data = Data(tuple(Shard("x" * 1000, 0, number) for number in range(4000)))
    for _ in range(10):
        server.send(sleeper, data)
    others = Events()
    other = close(MemberStream(address, KEY, "worker-1-1", MemberId("6" * 32), others))
    assert others.next() == StreamOpened()
    opened = here.next()
    server.send(opened.connection, Welcome(1))
    assert others.next() == StreamReceived(Welcome(1))
    assert other.send(StopJob("done"))
    assert here.next() == MemberSaid(opened.connection, StopJob("done"))
    assert there.queue.empty()
    reads.set()
    there.until(StreamOpened)
    assert [there.next() for _ in range(10)] == 10 * [StreamReceived(data)]


def test_a_killed_member_is_noticed(address: str, close: Callable[[Any], Any]) -> None:
    here = Events()
    close(ControlServer(address, TOKEN, here))
    script = (
        "import sys, threading; from elasticdl.control.transport.memberstream import MemberStream;"
        'from elasticdl.control.transport.keys import Key, derive; key = derive(b"the job\'s token", Key.WORKER);'
        "s = MemberStream(sys.argv[1], key, 'worker-1-1', '0'*32, print); threading.Event().wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", script, address], stdout=subprocess.DEVNULL)
    opened = here.until(MemberOpened)
    process.kill()
    assert here.until(MemberClosed) == MemberClosed(opened.connection)
    process.wait()


def test_importing_starts_nothing() -> None:
    script = (
        "import sys, threading, elasticdl.control.transport.stream, elasticdl.control.transport.memberstream;"
        "assert threading.active_count() == 1; assert 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_progress_is_thinned_out_within_a_view(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    close(ControlServer(address, TOKEN, here))
    stream = close(member(address, there))
    there.until(StreamOpened)
    sent = [
        progress
        for step in range(2000)
        for view in [1 if step < 1000 else 2]
        if stream.send(
            progress := Progress(ViewId(view), StateId(step, view), Position(0, 0, 1, 0), None, step)
        )
    ]
    assert {0, 1000} <= {progress.state.step for progress in sent}
    assert len(sent) < 1000
    assert [here.until(MemberSaid).message for _ in sent] == sent
    # what was held back last is told before anything else is
    for step in (2000, 2001, 2002):
        stream.send(last := Progress(ViewId(2), StateId(step, 2), Position(0, 0, 1, 0), None, step))
    stream.send(Note(EventKind.NOTE, ViewId(2), 2002, "the end"))
    while (told := here.until(MemberSaid).message) != last:
        assert isinstance(told, Progress)
    assert isinstance(here.until(MemberSaid).message, Note)


def test_what_waits_to_be_sent_is_one_message_if_it_is_short() -> None:
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    said = [Note(EventKind.NOTE, ViewId(0), step, "x") for step in range(codec.MOST_JOINED + 10)]
    said += [Note(EventKind.NOTE, ViewId(0), step, 40_000 * "x") for step in range(3)]
    for message in said:
        outbox.put(codec.encode_member(message))
    outbox.put(None)
    sent = list(_outgoing(outbox))
    assert [1 + len(frame.then) for frame in sent] == [codec.MOST_JOINED, 11, 1, 1]
    assert [message for frame in sent for message in codec.decode_said(frame)] == said


def test_what_is_said_alone_is_sent_at_once() -> None:
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sending = _outgoing(outbox)
    for step in range(3):
        said = Note(EventKind.NOTE, ViewId(0), step, "x")
        outbox.put(codec.encode_member(said))
        assert list(codec.decode_said(next(sending))) == [said]


def test_a_message_takes_little_time(address: str, close: Callable[[Any], Any]) -> None:
    here, there = Events(), Events()
    server = close(ControlServer(address, TOKEN, here))
    stream = close(member(address, there))
    connection = here.next().connection
    assert there.next() == StreamOpened()
    report = Report(ViewId(1), ViewId(1), None, None, frozenset(), False)
    began = time.perf_counter()
    for _ in range(200):
        stream.send(NextView(report))
        here.next()
        server.send(connection, Welcome(1))
        there.next()
    seconds = (time.perf_counter() - began) / 200
    print(f"round trip {seconds * 1e6:.0f} µs")
    assert seconds < 0.1
