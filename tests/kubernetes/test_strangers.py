"""Who does not belong to a job gets no word out of its pods, and people are told of the attempt."""

from __future__ import annotations

import base64
import socket
from contextlib import closing
from pathlib import Path

import pytest

from elasticdl import _core
from elasticdl.cluster.certificates import make_identities
from elasticdl.cluster.cluster import Role
from elasticdl.spec.podplace import HEART_PORT

from .conftest import Start
from .jobs import paced
from .processes import wait_for


@pytest.mark.timeout(900)
def test_strangers_are_refused_logged_and_counted(start: Start, tmp_path: Path) -> None:
    job = start(**paced(tmp_path))
    job.past(3, workers=3)
    (master,) = job.pods("master")
    at = (master["status"]["podIP"], HEART_PORT)
    with socket.create_connection(at) as stranger:
        stranger.settimeout(60)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while stranger.recv(4096):
            pass
    # A worker of another job, which has even learned this one's token.
    token = base64.b64decode(job.api.get("Secret", f"{job.name}-secret")["data"]["token"])
    other = make_identities()[Role.WORKER]

    def told(what: str) -> bool:
        return what in job.kubectl("logs", master["metadata"]["name"])

    with closing(_core.Heart(f"tcp:{at[0]}:{at[1]}", "0" * 32, token, 0.1, other)):
        wait_for("a line in the master's log", lambda: told("refused: it does not accept this end"), 60.0)
    assert told("refused: what it says is not TLS")
    job.go()
    summary = job.summary()
    assert summary["refused_connections"] >= 2
    assert summary["members"]["joined"] == 3
