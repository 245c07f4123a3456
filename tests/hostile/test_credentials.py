"""Attacks with credentials of the job itself: recorded, moved between fields, of another role, of another name."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from elasticdl.control.generated import control_pb2 as wire
from elasticdl.control.generated import control_pb2_grpc as service
from elasticdl.control.protocol import codec
from elasticdl.control.protocol.messages import MemberMessage, Note, Register, Report
from elasticdl.control.protocol.psmessages import Accounts, CopyReady, Enroll, SlotsCut
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport import channels, stream
from elasticdl.control.transport.client import JobClient
from elasticdl.control.transport.credentials import (
    CHALLENGE_SECONDS,
    FORMAT,
    Caller,
    Challenges,
    Credentials,
    Refusal,
    Refused,
    is_proof,
    proof,
)
from elasticdl.control.transport.keys import Key, data_key, derive
from elasticdl.control.transport.memberstream import MemberStream, StreamOpened, StreamRefused
from elasticdl.control.transport.rights import objection
from elasticdl.control.transport.stream import (
    ControlServer,
    MemberClosed,
    MemberOpened,
    ScaleWanted,
    StopWanted,
)
from elasticdl.errors import MasterAway

TOKEN = b"the token of the attacked job"
MEMBER = MemberId("5" * 32)
SECONDS = 20.0
WORKER = Caller(derive(TOKEN, Key.WORKER), Key.WORKER, "worker-0-1", MEMBER)
SERVER = Caller(derive(TOKEN, Key.PS), Key.PS, "ps-0-1", MEMBER)
CLIENT = Caller(derive(TOKEN, Key.CLIENT), Key.CLIENT, "client")


def refused(challenges: Challenges, opening: Any, method: str) -> Refusal:
    with pytest.raises(Refused) as caught:
        challenges.admit(opening, method)
    return caught.value.kind


def answered(challenges: Challenges, caller: Caller, method: str) -> dict[str, str | bytes]:
    return dict(caller.answer(challenges.make(), method).metadata())


# ------------------------------------------------------------------ proofs, without a connection


def test_both_ends_prove_themselves() -> None:
    challenges = Challenges(TOKEN)
    credentials = WORKER.answer(challenges.make(), "Member")
    admitted = challenges.admit(dict(credentials.metadata()), "Member")
    assert (admitted.role, admitted.name, admitted.member) == (Key.WORKER, "worker-0-1", MEMBER)
    assert credentials.confirmed_by(dict(admitted.answer))
    # What the master says to one call proves nothing to the next.
    again = WORKER.answer(challenges.make(), "Member")
    assert not again.confirmed_by(dict(admitted.answer))


def test_a_recorded_proof_counts_once() -> None:
    now = 0.0
    challenges = Challenges(TOKEN, lambda: now)
    recorded = answered(challenges, CLIENT, "Stop")
    challenges.admit(recorded, "Stop")
    assert refused(challenges, recorded, "Stop") is Refusal.STALE
    now += 10 * CHALLENGE_SECONDS  # also when its use has been forgotten
    challenges.admit(answered(challenges, CLIENT, "Stop"), "Stop")
    assert refused(challenges, recorded, "Stop") is Refusal.STALE
    # And with a master that was started again.
    unused = answered(challenges, CLIENT, "Stop")
    assert refused(Challenges(TOKEN), unused, "Stop") is Refusal.STALE


def test_a_challenge_that_no_master_made_counts_never() -> None:
    challenges = Challenges(TOKEN)
    until, nonce, mark = challenges.make().split("-")
    for forged in ("", "-", f"{until}-{'0' * 32}-{mark}", f"9{until}-{nonce}-{mark}", f"nan-{nonce}-{mark}"):
        opening = dict(CLIENT.answer(forged, "Stop").metadata())
        assert refused(challenges, opening, "Stop") is Refusal.STALE


def test_challenges_that_nobody_answers_take_no_memory() -> None:
    now = 0.0
    challenges = Challenges(TOKEN, lambda: now)
    for _ in range(1000):
        challenges.make()
    assert len(challenges._used) == 0
    for _ in range(100):
        challenges.admit(answered(challenges, CLIENT, "Status"), "Status")
    assert len(challenges._used) == 100
    now += CHALLENGE_SECONDS + 1.0
    challenges.admit(answered(challenges, CLIENT, "Status"), "Status")
    assert len(challenges._used) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("elasticdl-caller", "worker-1-1"),
        ("elasticdl-member", "6" * 32),
        ("elasticdl-role", "ps"),
        ("elasticdl-role", "client"),
        ("elasticdl-role", "master"),
        ("elasticdl-nonce", "7" * 32),
        ("elasticdl-proof", ""),
        ("elasticdl-proof", "\udcff"),
    ],
)
def test_a_proof_is_of_one_caller(key: str, value: str) -> None:
    challenges = Challenges(TOKEN)
    opening = answered(challenges, WORKER, "Member") | {key: value}
    assert refused(challenges, opening, "Member") is Refusal.UNKNOWN


def test_a_proof_is_of_one_call() -> None:
    challenges = Challenges(TOKEN)
    assert refused(challenges, answered(challenges, CLIENT, "Status"), "Stop") is Refusal.UNKNOWN


def test_no_boundary_between_fields_can_be_moved() -> None:
    key = b"key"
    assert not is_proof(proof(key, "ab", "c"), key, "a", "bc")
    assert not is_proof(proof(key, "a b", "c"), key, "a", "b c")
    assert not is_proof(proof(key, "a", ""), key, "a")
    challenges = Challenges(TOKEN)
    moved = {"elasticdl-caller": "worker-0-1" + MEMBER[:1], "elasticdl-member": MEMBER[1:]}
    assert refused(challenges, answered(challenges, WORKER, "Member") | moved, "Member") is Refusal.UNKNOWN


def test_the_token_itself_is_no_key() -> None:
    challenges = Challenges(TOKEN)
    for role, method in ((Key.CLIENT, "Stop"), (Key.WORKER, "Member"), (Key.PS, "Member")):
        opening = answered(challenges, Caller(TOKEN, role, f"{role}-0-1"), method)
        assert refused(challenges, opening, method) is Refusal.UNKNOWN


def test_keys_differ_and_only_the_shared_one_follows_from_another() -> None:
    keys = {key: derive(TOKEN, key) for key in Key}
    assert len({*keys.values(), TOKEN}) == len(Key) + 1
    assert data_key(keys[Key.SERVERS]) == keys[Key.DATA]
    for held in (Key.WORKER, Key.PS, Key.DATA, Key.CLIENT):
        assert data_key(keys[held]) not in keys.values()
        assert {derive(keys[held], key) for key in Key}.isdisjoint(keys.values())


@pytest.mark.parametrize("caller", [WORKER, SERVER], ids=["worker", "server"])
@pytest.mark.parametrize("method", ["Status", "Watch", "Stop", "Scale", "Profile"])
def test_members_may_not_do_what_people_do(caller: Caller, method: str) -> None:
    challenges = Challenges(TOKEN)
    assert refused(challenges, answered(challenges, caller, method), method) is Refusal.NOT_ALLOWED
    # Nor by saying that they were people: they lack the key.
    as_client = replace(caller, role=Key.CLIENT, name="client", member="")
    assert refused(challenges, answered(challenges, as_client, method), method) is Refusal.UNKNOWN


@pytest.mark.parametrize(
    ("caller", "name"),
    [(WORKER, "ps-0-1"), (WORKER, "master-0-1"), (WORKER, "client"), (SERVER, "worker-0-1"), (SERVER, "")],
)
def test_a_role_has_only_names_of_its_own(caller: Caller, name: str) -> None:
    challenges = Challenges(TOKEN)
    opening = answered(challenges, replace(caller, name=name), "Member")
    assert refused(challenges, opening, "Member") is Refusal.NOT_ALLOWED


def test_people_are_no_members() -> None:
    challenges = Challenges(TOKEN)
    assert refused(challenges, answered(challenges, CLIENT, "Member"), "Member") is Refusal.NOT_ALLOWED


def enroll(name: str, member: str = MEMBER) -> Enroll:
    return Enroll(MemberId(member), name, "", 0, None, (), 0, False)


def register(name: str, member: str = MEMBER) -> Register:
    report = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
    return Register(MemberId(member), name, "", 0, report)


@pytest.mark.parametrize(
    ("caller", "message", "allowed"),
    [
        (WORKER, register("worker-0-1"), True),
        (WORKER, enroll("worker-0-1"), True),
        (SERVER, enroll("ps-0-1"), True),
        (WORKER, register("worker-1-1"), False),
        (WORKER, register("worker-0-1", "6" * 32), False),
        (WORKER, enroll("ps-0-1"), False),
        (WORKER, CopyReady(0, 1, 1, True), False),
        (WORKER, Accounts((), 0, 0), False),
        (WORKER, SlotsCut(1, "x", (), ""), False),
        (SERVER, CopyReady(0, 1, 1, True), True),
        (SERVER, register("ps-0-1"), False),
        (SERVER, Note(EventKind.NOTE, ViewId(0), 0, "x"), False),
    ],
)
def test_a_member_speaks_as_itself_and_within_its_role(
    caller: Caller, message: MemberMessage, allowed: bool
) -> None:
    challenges = Challenges(TOKEN)
    admitted = challenges.admit(answered(challenges, caller, "Member"), "Member")
    assert (objection(admitted, message) is None) is allowed


# ------------------------------------------------------------------ against a master's control plane


class Heard(list[Any]):
    """What a master's control plane delivered; `wait` for one of a kind."""

    def __init__(self) -> None:
        self._came = threading.Condition()

    def __call__(self, event: Any) -> None:
        with self._came:
            self.append(event)
            self._came.notify_all()
        if isinstance(event, StopWanted | ScaleWanted):
            event.answer(True, "done")

    def wait(self, kind: type) -> Any:
        with self._came:
            assert self._came.wait_for(lambda: any(isinstance(one, kind) for one in self), SECONDS)
            return next(one for one in self if isinstance(one, kind))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        yield f"unix:{folder}/control"


@pytest.fixture
def server(address: str, heard: Heard) -> Iterator[ControlServer]:
    made = ControlServer(address, TOKEN, heard)
    yield made
    made.close()


@pytest.fixture
def stub(address: str, server: ControlServer) -> Iterator[Any]:
    with contextlib.closing(channels.connect(address, None)) as channel:
        yield service.ControlStub(channel)


def challenge(stub: Any, caller: Caller) -> str:
    return str(stub.Challenge(wire.ChallengeRequest(), metadata=caller.announcement(), timeout=SECONDS).text)


def code_of(call: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def test_a_recorded_stop_is_worth_nothing_the_second_time(
    stub: Any, heard: Heard, server: ControlServer
) -> None:
    credentials = CLIENT.answer(challenge(stub, CLIENT), "Stop")

    def stop() -> Any:
        return stub.Stop(wire.StopJob(reason="enough"), metadata=credentials.metadata(), timeout=SECONDS)

    assert stop().accepted
    assert code_of(stop) is grpc.StatusCode.ABORTED
    assert len(heard) == 1
    assert server.refused == 1


@pytest.mark.parametrize("caller", [WORKER, SERVER], ids=["worker", "server"])
def test_a_members_credentials_neither_stop_nor_scale_nor_read_the_job(
    stub: Any, heard: Heard, server: ControlServer, caller: Caller
) -> None:
    server.publish(JobStatus("j", "training", "", 1, 1, 0, 1, 0.5, None, 10, None, None, 2, ()))
    calls: dict[str, Callable[[Any], Any]] = {
        "Stop": lambda metadata: stub.Stop(wire.StopJob(reason="x"), metadata=metadata, timeout=SECONDS),
        "Scale": lambda metadata: stub.Scale(
            wire.ScaleRequest(num_workers=1), metadata=metadata, timeout=SECONDS
        ),
        "Status": lambda metadata: stub.Status(wire.StatusRequest(), metadata=metadata, timeout=SECONDS),
        "Watch": lambda metadata: next(
            stub.Watch(wire.WatchRequest(since=0.0), metadata=metadata, timeout=SECONDS)
        ),
        "Profile": lambda metadata: next(
            stub.Profile(wire.ProfileRequest(steps=1), metadata=metadata, timeout=SECONDS)
        ),
    }
    for method, call in calls.items():
        credentials = caller.answer(challenge(stub, caller), method)
        denied = code_of(lambda call=call, credentials=credentials: call(credentials.metadata()))  # type: ignore[misc]
        assert denied is grpc.StatusCode.PERMISSION_DENIED, method
    assert heard == []
    assert server.refused == len(calls)


def test_a_worker_that_says_it_was_a_server_is_disconnected(
    address: str, server: ControlServer, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    opened = threading.Event()

    def on_event(event: Any) -> None:
        if isinstance(event, StreamOpened):
            opened.set()

    with contextlib.closing(MemberStream(address, WORKER.key, WORKER.name, MEMBER, on_event)) as member:
        assert opened.wait(SECONDS)
        assert member.send(enroll("ps-0-1"))
        heard.wait(MemberClosed)
    assert isinstance(heard[0], MemberOpened)
    assert not any(isinstance(event, stream.MemberSaid) for event in heard)
    assert "says Enroll as ps-0-1" in caplog.text


def test_bytes_that_are_no_message_end_their_connection_only(
    address: str, stub: Any, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    opened, note = threading.Event(), Note(EventKind.NOTE, ViewId(0), 0, "still here")
    with contextlib.closing(
        MemberStream(address, WORKER.key, WORKER.name, MEMBER, lambda event: opened.set())
    ) as bystander:
        assert opened.wait(SECONDS)
        said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with contextlib.closing(channels.connect(address, None)) as channel:
            talk = channel.stream_stream("/elasticdl.v1.Control/Member", request_serializer=bytes)
            opening = WORKER.answer(challenge(stub, WORKER), "Member")
            call = talk(iter(said.get, None), metadata=opening.metadata(), timeout=SECONDS)
            said.put(b"\xff" * 100)
            assert list(call) == []
            said.put(None)
        liar = heard.wait(MemberClosed).connection
        assert f"connection {liar} is closed" in caplog.text
        assert bystander.send(note)
        assert heard.wait(stream.MemberSaid).message == note


def test_who_has_a_members_key_can_not_answer_people_as_the_master(address: str) -> None:
    """A false master at the job's address, with all that a worker and a server hold."""

    class Liar(service.ControlServicer):  # type: ignore[misc]
        def Challenge(self, request: Any, context: Any) -> Any:
            return wire.ChallengeText(text="1-2-3")

        def Stop(self, request: Any, context: Any) -> Any:
            said = dict(context.invocation_metadata())
            fields = [
                said[f"elasticdl-{name}"] for name in ("role", "caller", "member", "challenge", "nonce")
            ]
            for key in (WORKER.key, SERVER.key, derive(TOKEN, Key.DATA), derive(TOKEN, Key.SERVERS)):
                answer = ("elasticdl-proof", proof(key, "master", "Stop", *fields))
            context.send_initial_metadata((answer,))
            return wire.Answer(accepted=True, text="it stops")

    false = grpc.server(ThreadPoolExecutor(2))
    service.add_ControlServicer_to_server(Liar(), false)
    false.add_insecure_port(address)
    false.start()
    try:
        with JobClient(address, TOKEN) as client, pytest.raises(MasterAway, match="does not know"):
            client.stop("please")
    finally:
        false.stop(None)


def test_a_caller_of_the_format_before_is_refused_with_both_numbers(stub: Any) -> None:
    older = tuple((key, "1" if key == "elasticdl-format" else value) for key, value in CLIENT.announcement())
    with pytest.raises(grpc.RpcError) as caught:
        stub.Status(wire.StatusRequest(), metadata=older, timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "control format 1" in caught.value.details()
    assert f"control format {FORMAT}" in caught.value.details()


def test_a_master_of_the_format_before_is_refused_with_both_numbers(address: str) -> None:
    class Older(service.ControlServicer):  # type: ignore[misc]
        """Knows no challenge."""

    older = grpc.server(ThreadPoolExecutor(2))
    service.add_ControlServicer_to_server(Older(), older)
    older.add_insecure_port(address)
    older.start()
    told: list[Any] = []
    came = threading.Event()

    def on_event(event: Any) -> None:
        told.append(event)
        came.set()

    try:
        with contextlib.closing(MemberStream(address, WORKER.key, WORKER.name, MEMBER, on_event)):
            assert came.wait(SECONDS)
    finally:
        older.stop(None)
    assert isinstance(told[0], StreamRefused)
    assert "control format 1" in told[0].reason
    assert f"control format {FORMAT}" in told[0].reason


# ------------------------------------------------------------------ watchers


def test_a_watcher_that_does_not_read_is_disconnected(
    address: str,
    server: ControlServer,
    stub: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stream, "_UNREAD", 50)
    caplog.set_level(logging.WARNING)

    def credentials() -> Credentials:
        return CLIENT.answer(challenge(stub, CLIENT), "Watch")

    def begin() -> Any:
        call = stub.Watch(wire.WatchRequest(since=0.0), metadata=credentials().metadata(), timeout=SECONDS)
        call.initial_metadata()
        return call

    sleeper = begin()
    # Much at a time, so that the connection's own buffers are soon full.
    text = "x" * 100_000
    reader = begin()
    seen: list[EventKind] = []
    published = 0
    while "does not read what it is sent" not in caplog.text:
        published += 1
        assert published < 1000, "it is never noticed"
        server.publish(JobEvent(float(published), EventKind.NOTE, "", 0, 0, text))
        seen.append(codec.decode_seen(next(reader)).kind)
    with pytest.raises(grpc.RpcError) as caught:
        list(sleeper)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    # The other one continues.
    server.publish(JobEvent(1000.0, EventKind.FINISHED, "", 0, 0, ""))
    while (kind := codec.decode_seen(next(reader)).kind) != EventKind.FINISHED:
        seen.append(kind)
    assert set(seen) == {EventKind.NOTE}
    reader.cancel()


# ------------------------------------------------------------------ core dumps


@pytest.mark.skipif(
    not Path("/proc/sys/kernel/core_pattern").exists(), reason="core dumps are looked at as Linux makes them"
)
def test_a_process_that_holds_keys_leaves_no_core_dump(tmp_path: Path) -> None:
    def died(program: str) -> bool:
        """Return whether a process that aborts dumps its core."""
        script = (
            "import os, resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)\n"
            f"{program}\n"
            "os.abort()\n"
        )
        process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.DEVNULL)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = 0
        assert os.WTERMSIG(status) == signal.SIGABRT
        return os.WCOREDUMP(status)

    try:
        dumps = died("")
    except AssertionError:
        pytest.skip("the hard limit forbids core dumps here")
    if not dumps:
        pytest.skip("this machine makes no core dumps")
    assert not died(
        "from elasticdl.control.transport.coredumps import forbid_core_dumps; forbid_core_dumps()"
    )


@pytest.mark.parametrize("module", ["job.master", "job.worker", "job.ps", "job.launcher"])
def test_every_process_of_a_job_forbids_core_dumps_before_it_reads_a_key(module: str, tmp_path: Path) -> None:
    """It ends by what is asked of its place, with the limit that it has then."""
    script = (
        "import resource, sys\n"
        f"from elasticdl.{module.replace('.', ' import ')} as entry\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "def show(*_):\n"
        "    print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
        "    raise SystemExit(0)\n"
        "entry.own_place = entry.open_place = show\n"
        f"entry.main({'[sys.argv[0]]' if module == 'job.launcher' else ''})\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL")}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert shown.stdout.strip() in ("0", "1"), shown.stderr


def test_the_command_line_forbids_core_dumps_before_it_reads_a_key() -> None:
    """It holds a job's token, as `elasticdl stop` and others do, in the process of a person's shell."""
    script = (
        "import resource\n"
        "from elasticdl import cli\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "def run():\n"
        "    print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
        "    return 0\n"
        "cli.run = run\n"
        "cli.main()\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() in ("0", "1"), shown.stderr
