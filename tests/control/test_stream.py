"""Connections of the control plane: order, reconnection, and who is refused."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.control.protocol import codec
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Data,
    Finished,
    FoundShards,
    NewView,
    NextView,
    Note,
    Progress,
    Register,
    Report,
    StopJob,
    Welcome,
)
from elasticdl.control.protocol.profiling import (
    Missing,
    Phase,
    Profiled,
    Recorded,
    Refused,
    StepRecorded,
)
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.control.transport import credentials
from elasticdl.control.transport.client import JobClient
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamOpened,
    StreamReceived,
    StreamRefused,
    _outgoing,
)
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.control.transport.stream import (
    ControlServer,
    MemberClosed,
    MemberOpened,
    MemberSaid,
    ProfileLeft,
    ProfileWanted,
    ScaleWanted,
    StopWanted,
)
from elasticdl.control.transport.tls import Identity, read_identity
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import BadSetting, MasterAway

TOKEN = b"the job's token"
KEY = derive(TOKEN, Key.WORKER)
MEMBER = MemberId("5" * 32)
SECONDS = 20.0


class Events:
    """What came, in order; `until` waits for one."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()

    def __call__(self, event: Any) -> None:
        self.queue.put(event)

    def next(self) -> Any:
        return self.queue.get(timeout=SECONDS)

    def until(self, kind: type) -> Any:
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        yield f"unix:{folder}/control"


@pytest.fixture
def close() -> Iterator[Callable[[Any], Any]]:
    opened: list[Any] = []
    yield lambda thing: (opened.append(thing), thing)[1]
    for thing in reversed(opened):
        thing.close()


def member(
    address: str, events: Events, token: bytes = TOKEN, identity: Identity | None = None
) -> MemberStream:
    return MemberStream(address, derive(token, Key.WORKER), "worker-0-1", MEMBER, events, identity)


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


SERVER = """
import sys, threading
from elasticdl.control.transport.stream import ControlServer
server = ControlServer(sys.argv[1], b"the job's token", lambda event: print(event, flush=True))
print("bound", flush=True)
threading.Event().wait()
"""


def serve(address: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "bound\n"
    return process


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


def status(step: int) -> JobStatus:
    return JobStatus("j", "training", "", 1, step, 0, 1, 0.5, None, 10, None, None, 2, ())


def test_clients_watch_ask_and_are_answered(address: str, close: Callable[[Any], Any]) -> None:
    here = Events()
    server = close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    with pytest.raises(MasterAway, match="starting"):
        client.status()
    first, second = (
        JobEvent(1.0, EventKind.JOINED, "worker-0-1", 1, 0, "x"),
        JobEvent(2.0, EventKind.VIEW, "", 1, 0, "y", 0.5),
    )
    server.publish(first)
    server.publish(status(3))
    assert client.status() == status(3)
    seen = client.watch()
    assert [next(seen), next(seen)] == [first, status(3)]
    server.publish(second)
    assert next(seen) == second
    later = close(JobClient(address, TOKEN)).watch(since=1.0)
    assert [next(later), next(later)] == [second, status(3)]
    server.close()
    assert list(seen) == []


def test_a_status_that_nobody_watches_is_not_encoded(
    address: str, close: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []
    encode = codec.encode_seen
    monkeypatch.setattr(codec, "encode_seen", lambda seen: (encoded.append(seen), encode(seen))[1])
    server = close(ControlServer(address, TOKEN, Events()))
    event = JobEvent(1.0, EventKind.JOINED, "worker-0-1", 1, 0, "x")
    for seen in (status(1), status(2), event):
        server.publish(seen)
    client = close(JobClient(address, TOKEN))
    watching = client.watch()
    assert [next(watching), next(watching)] == [event, status(2)]
    assert encoded == [event, status(2)]
    server.publish(status(3))
    assert next(watching) == status(3)


def test_requests_wait_for_the_answer(address: str, close: Callable[[Any], Any]) -> None:
    here = Events()
    close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(client.stop, "enough")
        wanted = here.next()
        assert isinstance(wanted, StopWanted)
        assert wanted.reason == "enough"
        assert not stopping.done()
        wanted.answer(True, "stops")
        assert stopping.result(SECONDS) == "stops"
        scaling = pool.submit(client.scale, 0)
        wanted = here.next()
        assert isinstance(wanted, ScaleWanted)
        wanted.answer(False, "at least 1 worker")
        with pytest.raises(BadSetting, match="at least 1"):
            scaling.result(SECONDS)


def test_a_profile_comes_step_by_step_and_one_who_leaves_is_told(
    address: str, close: Callable[[Any], Any]
) -> None:
    here = Events()
    close(ControlServer(address, TOKEN, here))
    client = close(JobClient(address, TOKEN))
    step = Recorded("worker-0-1", StepRecorded(1, 7, 100, 9, (Phase("ring", 101, 3),)))

    def answered(steps: int, *said: Profiled | None) -> Iterator[Recorded | Missing]:
        profile = client.profile(steps)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(next, profile)
            wanted = here.until(ProfileWanted)
            assert wanted.steps == steps
            for one in said:
                wanted.tell(one)
            yield first.result(SECONDS)
            yield from profile
        assert here.until(ProfileLeft).request == wanted.request

    assert list(answered(2, step, Missing("worker-1-1 has gone"), None)) == [
        step,
        Missing("worker-1-1 has gone"),
    ]
    with pytest.raises(BadSetting, match="profiled already"):
        list(answered(3, Refused("the job is profiled already"), None))
    leaving = client.profile(1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(next, leaving)
        wanted = here.until(ProfileWanted)
        wanted.tell(step)
        assert first.result(SECONDS) == step
    leaving.close()
    assert here.until(ProfileLeft).request == wanted.request


def test_a_lost_master_is_said(address: str, close: Callable[[Any], Any]) -> None:
    client = close(JobClient(address, TOKEN))
    with pytest.raises(MasterAway):
        client.status()
    process = serve(address)
    seen = close(JobClient(address, TOKEN)).watch()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, seen)
        member_seen = Events()
        close(member(address, member_seen))
        member_seen.until(StreamOpened)
        process.kill()
        with pytest.raises(MasterAway):
            waiting.result(SECONDS)
    process.communicate()


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


# ------------------------------------------------------------------ between machines


def test_another_machine_is_reached_with_certificates_only() -> None:
    with pytest.raises(BadSetting, match="only with the job's certificates"):
        ControlServer("tcp:0.0.0.0:0", TOKEN, Events())
    with pytest.raises(BadSetting, match="only with the job's certificates"):
        MemberStream("tcp:10.1.2.3:5", KEY, "worker-0-1", MEMBER, Events())


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


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def next_refusals(server: ControlServer) -> list[str]:
    """Return why a caller was refused: it may know before it is written down."""
    found: list[str] = []

    def come() -> bool:
        found.extend(why for _, why in server.refusals()[0])
        return bool(found)

    eventually(come)
    return found


JOB, OTHER = make_identities(), make_identities()
AT = "tcp:127.0.0.1:0"


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
        time.sleep(0.02)
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
