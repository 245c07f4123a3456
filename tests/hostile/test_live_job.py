"""All attacks at once on one whole job while it trains: it ends as if nobody had come, and says how many it refused."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from elasticdl import _core
from elasticdl._core import Batch, ParameterClient
from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table
from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.cluster.local import wire as launching
from elasticdl.cluster.local.place import JobPlace, find
from elasticdl.control.generated import control_pb2 as wire
from elasticdl.control.generated import control_pb2_grpc as service
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport import channels
from elasticdl.control.transport.credentials import Caller, proof
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.memberstream import MemberStream, StreamEvent, StreamOpened, StreamRefused
from tests.job.conftest import EPOCHS, RECORDS, WIDTH, Job, Start
from tests.job.test_faults import ZOO, at_step, check, training
from tests.job.test_ps import check as check_counts

from .test_connections import Flood, await_it
from .test_credentials import MEMBER, SECONDS, challenge, code_of
from .test_launcher import NOISE, connect, is_closed

KEPT = 200
"""Connections to one socket at a time; those of all of them fit into the least limit of a process's descriptors."""
WITNESS_SECONDS = 20
"""The floods take processors; nobody is to be taken for lost because of that."""
NONSENSE = (b"", b"EDL", bytes(64), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * (1 << 16))
STRANGER = b"not the token of the job's"


def acceptors(place: JobPlace) -> list[str]:
    """Return the addresses of all data planes of a job that runs."""
    return [f"unix:{path}" for path in sorted(place.sockets.glob("d*"))]


def half_open(address: str) -> Iterator[socket.socket]:
    """Yield connections that have said what makes no sense, or half of it; they stay open."""
    for nonsense in NONSENSE:
        knocking = socket.socket(socket.AF_UNIX)
        knocking.settimeout(SECONDS)
        knocking.connect(address.removeprefix("unix:"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            knocking.sendall(nonsense)
        yield knocking


def attack_the_launcher(place: JobPlace) -> None:
    for noise in NOISE:
        with connect(place) as raw:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                raw.sendall(noise + b"\n")
                raw.shutdown(socket.SHUT_WR)
            assert is_closed(raw)
    # A worker, which has a key and not the launcher's, says that it was the master.
    with connect(place) as raw:
        raw.sendall(launching.write_request(launching.Hello("0" * 32)))
        nonce = launching.read_challenge(raw.recv(4096)).nonce
        key = derive(place.token(), Key.WORKER)
        raw.sendall(launching.write_request(launching.Proof(proof(key, "master", "0" * 32, nonce))))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(launching.write_request(launching.Launch(ProcessName(Role.WORKER, 7, 1))))
        assert is_closed(raw)


def attack_the_control_plane(place: JobPlace) -> int:
    """Return how many calls were refused."""
    member = Caller(derive(place.token(), Key.WORKER), Key.WORKER, "worker-0-1", MEMBER)
    as_client = replace(member, role=Key.CLIENT, name="client", member="")
    stranger = Caller(derive(STRANGER, Key.CLIENT), Key.CLIENT, "client")
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    calls = 0
    with closing(channels.connect(place.control_address, None)) as channel:
        stub = service.ControlStub(channel)
        methods: dict[str, Callable[[Any], Any]] = {
            "Stop": lambda said: stub.Stop(wire.StopJob(reason="x"), metadata=said, timeout=SECONDS),
            "Scale": lambda said: stub.Scale(
                wire.ScaleRequest(num_workers=1), metadata=said, timeout=SECONDS
            ),
            "Status": lambda said: stub.Status(wire.StatusRequest(), metadata=said, timeout=SECONDS),
        }
        for (method, call), (caller, code) in itertools.product(
            methods.items(), ((member, denied), (as_client, unknown), (stranger, unknown))
        ):
            said = caller.answer(challenge(stub, caller), method).metadata()
            assert code_of(lambda call=call, said=said: call(said)) is code, (method, caller.name)  # type: ignore[misc]
            calls += 1
        as_master = replace(member, name="master-0-1")
        said = as_master.answer(challenge(stub, as_master), "Member").metadata()
        assert code_of(lambda: next(stub.Member(iter(()), metadata=said, timeout=SECONDS))) is denied
        calls += 1
    for key, name in ((STRANGER, "worker-0-1"), (member.key, "ps-0-1")):
        heard: list[StreamEvent] = []
        with closing(MemberStream(place.control_address, key, name, MEMBER, heard.append)):
            await_it(lambda: any(isinstance(one, StreamRefused) for one in heard))  # noqa: B023
        assert not any(isinstance(one, StreamOpened) for one in heard)
        calls += 1
    return calls


def attack_the_heartbeats(place: JobPlace) -> None:
    """Beat for a member that the job has, with a key that it has not."""
    with closing(_core.Heart(place.heart_address, MEMBER, STRANGER, 0.02, None)) as heart:
        heart.set(9, 9, 9)


def attack_the_data_planes(place: JobPlace) -> None:
    foreign = Catalog(
        seed=1,
        tables=[Table("rows", WIDTH, Initial(InitialKind.CONSTANT, 7.0, 0.0))],
        variables=[],
        rule=Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}),
        slots=1,
    ).core()
    for acceptor in acceptors(place):
        with closing(ParameterClient("stranger", STRANGER, foreign)) as stranger:
            stranger.learn({0: acceptor}, [(0, 1, 1, 0, None, 0)], 0)
            push = [(Batch(foreign, 0, np.arange(3)), np.full((3, WIDTH), 9.0, np.float32), True)]
            assert stranger.settled(stranger.push(((0, 0), 0, 0, 1.0, 0), push, []), 0.5) is None


def attack(job: Job, step: int) -> int:
    """Attack a job that trains from a step on, everything at once; return how many calls of its control plane were refused."""
    at_step(job, step, lambda status: True)
    place = find("test")
    planes = [place.heart_address, *acceptors(place)]
    assert len(planes) >= 3
    with ExitStack() as open_:
        floods = [
            open_.enter_context(closing(Flood(address, most=1_000_000, kept=KEPT)))
            for address in (*planes, place.control_address, place.launcher_address)
        ]
        for address in (*planes, place.control_address):
            for connection in half_open(address):
                open_.enter_context(connection)
        attack_the_launcher(place)
        refused = attack_the_control_plane(place)
        attack_the_heartbeats(place)
        attack_the_data_planes(place)
        seen: list[JobStatus] = []
        at_step(job, 0, lambda status: bool(seen.append(status)) or True)
        # It has trained meanwhile and does so, with the workers that it had.
        at_step(
            job,
            seen[0].step + 5,
            lambda status: [one.name for one in training(status)] == ["worker-0-1", "worker-1-1"],
        )
        assert all(flood.goes_on() and flood.opened > KEPT for flood in floods)
    return refused


def undisturbed(summary: dict[str, Any], refused: int) -> None:
    assert summary["members"]["joined"] == 2
    assert summary["members"]["lost"] == 0
    assert summary["recoveries"] == []
    assert summary["refused_connections"] > refused  # and those of the heartbeats


def test_workers_that_train_together(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ZOO,
        model_def="paced.custom_model",
        training_data=iris / "train",
        num_workers=2,
        num_epochs=40,
        minibatch_size=8,
        num_minibatches_per_task=1,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "iris.npz",
        witness_seconds=WITNESS_SECONDS,
    )
    refused = attack(job, 5)
    undisturbed(check(job, tmp_path), refused)


def test_parameter_servers(plain: Start, ids: np.ndarray, tmp_path: Path) -> None:
    job = plain(audit=tmp_path / "audit", output=tmp_path / "tallied.npz", witness_seconds=WITNESS_SECONDS)
    refused = attack(job, 20)
    summary = check_counts(job, tmp_path, ids)
    undisturbed(summary, refused)
    assert summary["roll_backs"] == 0
    assert summary["records_trained"] == RECORDS * EPOCHS
    for log in job.state.glob("**/logs/ps-*.log"):
        assert "data plane: connection from" in log.read_text()
