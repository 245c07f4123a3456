"""The figures of a job in pods, as its master serves them to Prometheus: no cluster is needed for that."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from elasticdl.cluster.cluster import Role
from elasticdl.cluster.kubernetes import manifests, podplace
from elasticdl.cluster.kubernetes.certificates import make_identities
from elasticdl.cluster.kubernetes.podplace import PodPlace
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.transport import tls
from elasticdl.control.transport.keys import Key, derive
from elasticdl.errors import BadSetting
from elasticdl.job.page import MasterFigures
from elasticdl.job.podsubmit import prepare
from elasticdl.page import httpserver
from elasticdl.page.recording import Recording
from elasticdl.spec.jobspec import JobSpec
from tests.page.jobs import event, status
from tests.page.test_server import descriptors, within

from .test_podjob import in_pods

SECONDS = 30.0
JOB_TOKEN = b"t" * 32


@dataclass(frozen=True)
class Pod:
    """A master's pod: what is mounted there, and what Prometheus is given."""

    place: PodPlace
    spec: JobSpec
    authority: str
    token: str

    def connect(self, authority: str = "", name: str = tls.MASTER) -> ssl.SSLSocket:
        """Connect as Prometheus does, who shows no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority or self.authority)
        raw = socket.create_connection(("127.0.0.1", self.spec.metrics_port), timeout=SECONDS)
        try:
            return context.wrap_socket(raw, server_hostname=name)
        except BaseException:
            raw.close()
            raise

    def get(self, path: str = "/metrics", token: str | None = None) -> tuple[int, str]:
        """Ask, and return status and body; the pod is waited for until it listens."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                connection = HTTPConnection("127.0.0.1")
                connection.sock = self.connect()
                break
            except ConnectionError:
                assert time.monotonic() < end, "nobody listens"
                time.sleep(0.02)
        with contextlib.closing(connection):
            connection.request(
                "GET", path, headers={"Authorization": f"Bearer {self.token if token is None else token}"}
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec, identity = in_pods(metrics_port=port), make_identities()[Role.MASTER]
    files = {
        "ca.crt": identity.authority,
        "tls.crt": identity.certificate,
        "tls.key": identity.key,
        "token": JOB_TOKEN,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    text = podplace.job_text("job", "default", "uid", 900.0, "10.0.0.1", own_policy=True)
    (tmp_path / "job.json").write_text(text)
    # Not the address at which the tests ask: `kubectl port-forward` comes to another one than the pod's, too.
    place = podplace.open_pod(tmp_path, tmp_path, tmp_path, "127.0.0.2", is_master=True)
    given = manifests.metrics_secret(spec, "uid", JOB_TOKEN, identity.authority)
    assert sorted(given["data"]) == ["ca.crt", "token"]
    return Pod(place, spec, identity.authority.decode(), derive(JOB_TOKEN, Key.METRICS).hex())


@contextlib.contextmanager
def served(pod: Pod, recording: Recording) -> Iterator[None]:
    """Be the master of a job that has made steps."""
    figures = MasterFigures(pod.place, pod.spec, recording)
    yield
    figures.close()


def trained(steps: int) -> Recording:
    recording = Recording(900.0)
    recording.progress(steps, 0.5)
    recording.status(status(steps))
    return recording


def test_figures_are_for_those_who_have_the_token(pod: Pod) -> None:
    with served(pod, trained(7)):
        code, body = pod.get()
        assert code == 200
        assert "\nelasticdl_step 7.0\n" in body
        for wrong in ("", "x" * 64, JOB_TOKEN.hex(), derive(JOB_TOKEN, Key.PAGE).hex()):
            code, body = pod.get(token=wrong)
            assert code == 401
            assert "elasticdl_" not in body
        assert pod.get("/healthz", token="") == (200, "ok\n")
        assert pod.get("/api/v1/status", token="")[0] == 401
        assert [pod.get(path)[0] for path in ("/api/v1/status", "/", "/page.js")] == [404] * 3


def test_the_master_proves_itself_and_nothing_is_said_in_the_open(pod: Pod) -> None:
    with served(pod, trained(7)):
        assert pod.get()[0] == 200
        with contextlib.closing(pod.connect()) as connection:
            assert connection.version() == "TLSv1.3"
        stranger = make_identities()[Role.MASTER].authority.decode()
        with pytest.raises(ssl.SSLCertVerificationError):
            pod.connect(stranger)
        with pytest.raises(ssl.SSLCertVerificationError):
            pod.connect(name=tls.WORKER)
        with socket.create_connection(("127.0.0.1", pod.spec.metrics_port), timeout=SECONDS) as plain:
            plain.sendall(
                f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {pod.token}\r\n\r\n".encode()
            )
            said = b""
            with contextlib.suppress(ConnectionError):
                while part := plain.recv(4096):
                    said += part
        assert b"elasticdl" not in said
        assert pod.get()[0] == 200


def test_the_next_master_continues_the_figures(pod: Pod) -> None:
    first = trained(7)
    first.event(event(950.0, EventKind.EVALUATED, step=7, seconds=1.5, values=(("val_loss", 0.25),)))
    with served(pod, first):
        assert 'elasticdl_validation{metric="val_loss"} 0.25' in pod.get()[1]
    second = Recording(900.0)
    second.recall(first.curves())
    with served(pod, second):
        body = pod.get()[1]
    assert 'elasticdl_validation{metric="val_loss"} 0.25' in body


def test_silent_connections_do_not_take_the_master_s_descriptors(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpserver, "_HANDSHAKE_SECONDS", 1.0)
    with served(pod, trained(7)):
        assert pod.get()[0] == 200
        before = descriptors()
        with contextlib.ExitStack() as all_of_them:
            silent = [all_of_them.enter_context(socket.socket()) for _ in range(160)]
            for one in silent:  # at once: who finds the queue full comes again a second later
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", pod.spec.metrics_port))
            assert within(lambda: len(select.select([], silent, [], 0.1)[1]) == len(silent))
            # Their own ends are in this process, too.
            assert within(lambda: descriptors() - before <= 160 + 110)
            assert within(lambda: pod.get()[0] == 200)


def test_a_port_that_can_not_be_had_costs_the_figures_only(
    pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        socket.create_server(("127.0.0.1", pod.spec.metrics_port)),
        served(pod, trained(7)),
    ):
        assert within(lambda: bool(caplog.records))
    assert (
        f"the job has no figures for Prometheus: --metrics_port: the port {pod.spec.metrics_port}"
        in caplog.text
    )


@pytest.mark.parametrize("port", [50001, 50002])
def test_the_ports_of_the_job_itself_are_taken(port: int) -> None:
    with pytest.raises(BadSetting, match="--metrics_port: the job itself needs the ports 50001 and 50002"):
        prepare(in_pods(metrics_port=port))
