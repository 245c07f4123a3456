"""The data plane with a job's certificates: what `make_identities` makes is what the core demands, and strangers are told to people."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl import _core
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting, TransferFailed
from tests.core.members import DIGEST, TOKEN, group, member, side_by_side

AT = "tcp:127.0.0.1:0"
JOB = make_identities()
OTHER = make_identities()
STATE = (7, 1)


def worker(rank: int, identity: Identity = JOB[Role.WORKER], address: str = AT) -> _core.Endpoint:
    endpoint = _core.Endpoint(address, member(rank), TOKEN, identity)
    endpoint.enter(1, DIGEST)
    return endpoint


def transfer(by: _core.Endpoint, donor: tuple[str, str]) -> _core.StateTransfer:
    return _core.StateTransfer(by, 1, DIGEST, STATE, donor, 30.0)


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_ring_says_that_it_is_encrypted(tmp_path: Path) -> None:
    one = np.ones(1000, np.float32)
    with group(tmp_path, 2, "tls") as rings:
        side_by_side(*(lambda ring=ring: ring.reduce(1, one, np.empty_like(one), []) for ring in rings))  # type: ignore[misc]
        assert {ring.transport.partition("/")[0] for ring in rings} == {"tls+tcp"}


def test_unix_sockets_stay_plain(tmp_path: Path) -> None:
    ends = [worker(rank, address=f"unix:{tmp_path}/{rank}") for rank in range(2)]
    one = np.ones(1000, np.float32)
    peers = [(member(rank), end.address) for rank, end in enumerate(ends)]
    rings = [_core.Ring(end, 1, DIGEST, rank, peers, 30.0) for rank, end in enumerate(ends)]
    side_by_side(*(lambda ring=ring: ring.reduce(1, one, np.empty_like(one), []) for ring in rings))  # type: ignore[misc]
    assert [ring.transport for ring in rings] == ["unix", "unix"]


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        (OTHER[Role.WORKER], "not of this job's authority"),
        (
            Identity(JOB[Role.WORKER].authority, OTHER[Role.WORKER].certificate, OTHER[Role.WORKER].key),
            "does not accept this end",
        ),
        (JOB[Role.MASTER], "does not accept this end"),
    ],
)
def test_who_shows_another_certificate_gets_no_state(identity: Identity, why: str) -> None:
    donor, stranger = worker(0), worker(1, identity)
    server = _core.StateServer(donor, 1, DIGEST, STATE, b"secret")
    with pytest.raises(TransferFailed, match=why):
        transfer(stranger, (member(0), donor.address)).run()
    eventually(lambda: donor.refused)
    [(peer, reason)], others = donor.refusals()
    assert peer.startswith("127.0.0.1:")
    assert reason
    assert (donor.refused, others) == (1, 0)
    assert donor.refusals() == ([], 0)
    server.close()


def test_state_is_not_taken_from_another_job() -> None:
    donor, healee = worker(0, OTHER[Role.WORKER]), worker(1)
    server = _core.StateServer(donor, 1, DIGEST, STATE, b"poison")
    with pytest.raises(TransferFailed, match="not of this job's authority"):
        transfer(healee, (member(0), donor.address)).run()
    server.close()


def test_hearts_beat_for_a_master_of_the_job() -> None:
    monitors = [
        _core.HeartMonitor(AT, TOKEN, identity)
        for identity in (JOB[Role.MASTER], OTHER[Role.MASTER], JOB[Role.WORKER])
    ]
    hearts = [_core.Heart(monitor.address, "m", TOKEN, 0.02, JOB[Role.WORKER]) for monitor in monitors]
    stranger = _core.Heart(monitors[0].address, "stranger", TOKEN, 0.02, OTHER[Role.WORKER])
    eventually(lambda: all(monitor.refused for monitor in monitors) and monitors[0].poll())
    assert [sign[0] for sign in monitors[0].poll()] == ["m"]
    assert [monitor.poll() for monitor in monitors[1:]] == [[], []]
    for end in (*hearts, stranger, *monitors):
        end.close()


def test_a_key_of_another_certificate_is_a_bad_setting() -> None:
    mixed = Identity(JOB[Role.WORKER].authority, JOB[Role.WORKER].certificate, OTHER[Role.WORKER].key)
    for make in (
        lambda: _core.Endpoint(AT, member(0), TOKEN, mixed),
        lambda: _core.Heart(AT, member(0), TOKEN, 1.0, mixed),
        lambda: _core.HeartMonitor(AT, TOKEN, mixed),
    ):
        with pytest.raises(BadSetting, match="certificate can't be used"):
            make()


def test_without_certificates_nothing_listens_for_other_machines() -> None:
    for make in (
        lambda: _core.Endpoint("tcp:0.0.0.0:0", member(0), TOKEN),
        lambda: _core.HeartMonitor("tcp:0.0.0.0:0", TOKEN),
    ):
        with pytest.raises(BadSetting, match="only with the job's certificates"):
            make()


def test_refusals_are_logged_one_by_one_and_many_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    endpoint = worker(0)
    log = RefusalLog(endpoint, "data plane")
    log.look(0.0)
    assert not caplog.records
    host, _, port = endpoint.address.removeprefix("tcp:").rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    eventually(lambda: endpoint.refused == 20)
    log.look(1.0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 9
    assert "data plane: connection from 127.0.0.1:" in lines[0]
    assert "TLS" in lines[0]
    assert lines[-1] == "data plane: 12 more connections were refused"
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    eventually(lambda: endpoint.refused == 21)
    log.look(2.0)
    assert len(caplog.records) == 9, "it was told of others a second ago"
    log.look(11.0)
    assert len(caplog.records) == 10
