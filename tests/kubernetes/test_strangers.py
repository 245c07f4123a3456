"""Who does not belong to a job gets no word out of its pods, and people are told of the attempt."""

from __future__ import annotations

import base64
import socket
from contextlib import closing
from pathlib import Path

import pytest

from elasticdl import _core
from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.cluster.kubernetes.podplace import CONTROL_PORT, HEART_PORT
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.memberstream import MemberStream, StreamEvent
from elasticdl.control.transport.tls import Identity

from .conftest import Start
from .jobs import paced
from .processes import wait_for


@pytest.mark.timeout(900)
def test_strangers_are_refused_logged_and_counted(start: Start, tmp_path: Path) -> None:
    job = start(**paced(tmp_path))
    job.past(3, workers=3)
    (master,) = job.pods("master")
    host = master["status"]["podIP"]
    for port in (HEART_PORT, CONTROL_PORT):
        with socket.create_connection((host, port)) as stranger:
            stranger.settimeout(60)
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
    # A worker of another job, which has even learned this one's token, and which authority to believe.
    secret = job.api.get("Secret", f"{job.name}-secret")["data"]
    token = base64.b64decode(secret["token"])
    other = make_identities()[Role.WORKER]
    believing = Identity(base64.b64decode(secret["ca.crt"]), other.certificate, other.key)
    heard: list[StreamEvent] = []

    def told(acceptor: str, why: str) -> bool:
        log = job.api.log(master["metadata"]["name"], "master")
        return any(f"{acceptor}: connection from " in line and why in line for line in log)

    with closing(_core.Heart(f"tcp:{host}:{HEART_PORT}", "0" * 32, derive(token, Key.DATA), 0.1, other)):
        wait_for(
            "a line in the master's log",
            lambda: told("heartbeats", "refused: it does not accept this end"),
            60.0,
        )
    address, member = f"tcp:{host}:{CONTROL_PORT}", MemberId("0" * 32)
    with closing(
        MemberStream(address, derive(token, Key.WORKER), "worker-0-9", member, heard.append, believing)
    ):
        wait_for(
            "another line",
            lambda: told("control plane", "refused: its certificate is not of this job's authority"),
            60.0,
        )
    assert told("heartbeats", "refused: what it says is not TLS")
    assert told("control plane", "refused: what it says is not TLS")
    assert heard == []
    job.go()
    summary = job.summary()
    assert summary["refused_connections"] >= 4
    assert summary["members"]["joined"] == 3
