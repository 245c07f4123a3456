"""The page of a job on Kubernetes, which the command serves out of the objects that `elasticdl status` reads."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.cluster.kubernetes.items import ConfigMapItem
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.transport import tls
from elasticdl.job import podsubmit
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.master.reporting.statusstore import ObjectStatusStore
from elasticdl.page.recording import Recording
from tests.page.jobs import Clock, event, status

from .conftest import Start
from .control_plane import ControlPlane
from .jobs import ELASTICDL, SECONDS, Job, environment, paced
from .processes import wait_for
from .submitting import spec
from .test_losses import lose_master
from .testbed import Testbed

FIGURES = 9464
"""The port of figures."""


class Page:
    """What `elasticdl status --open` serves."""

    def __init__(self, line: str) -> None:
        self._address, _, self._token = line.strip().partition("/#token=")

    def ask(self, path: str) -> Any:
        request = urllib.request.Request(
            f"{self._address}/api/v1/{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def opened(cluster: ControlPlane | Testbed, name: str, namespace: str) -> Iterator[Page]:
    """Run the command, and end it by Ctrl-C."""
    with subprocess.Popen(
        [ELASTICDL, "status", name, f"--namespace={namespace}", "--open"],
        env={**environment(cluster), "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield Page(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0


def test_what_a_master_keeps_is_on_the_page(
    control_plane: ControlPlane, api: Api, zoo: Path, rights: None
) -> None:
    podsubmit.submit(spec(api, zoo), api)
    names = manifests.Names("test-job")
    recording = Recording(900.0, Clock())
    for step in range(1, 1000):
        recording.progress(step, 1.0 / step)
    store = ObjectStatusStore(
        ConfigMapItem(api, names.store),
        ConfigMapItem(api, names.events),
        lambda line: None,
        lambda event: None,
    )
    store.tell(HistoryEvent(event(1001.0, EventKind.JOINED, "worker-0-1", "worker-0-1 has joined")))
    store.show(status(999))
    store.keep_curves(recording.curves(100))
    with opened(control_plane, "test-job", api.namespace) as page:

        def has_status() -> bool:
            body = page.ask("status")["job"]
            return body is not None and body["step"] == 999

        wait_for("the status", has_status, SECONDS)
        rows = page.ask("series")["series"]["loss"]
        assert [rows[0][1:], rows[-1][1]] == [[1, 1.0], 999]
        assert len(rows) <= 101
        assert page.ask("timeline")["rows"][0]["name"] == "worker-0"
        assert page.ask("logs") == {"processes": [], "process": "", "lines": []}
        store.conclude({"status": "finished", "reason": "all data was trained", "exit_code": 0})


def figures(job: Job) -> str:
    """Return the job's figures, asked for as Prometheus does; empty while its master does not serve them."""
    given = {
        name: b64decode(text) for name, text in job.api.get("Secret", f"{job.name}-metrics")["data"].items()
    }
    context = ssl.create_default_context(cadata=given["ca.crt"].decode())
    connection = HTTPConnection("figures")
    try:
        (master,) = job.pods("master")
        raw = socket.create_connection((master["status"]["podIP"], FIGURES), timeout=60)
        connection.sock = context.wrap_socket(raw, server_hostname=tls.MASTER)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {given['token'].decode()}"})
        return connection.getresponse().read().decode()
    except (ConnectionError, KeyError, ValueError):
        return ""
    finally:
        connection.close()


@pytest.mark.timeout(1800)
def test_losses_and_evaluations_of_pods_are_on_the_page(start: Start, ready: Testbed, tmp_path: Path) -> None:
    given = paced(tmp_path)
    job: Job = start(**given, validation_data="/data/iris/heldout", metrics_port=FIGURES)
    job.past(5, workers=3)
    with opened(ready, job.name, job.api.namespace) as page:
        wait_for("an evaluation", lambda: "val_loss" in page.ask("series")["series"], SECONDS)
        worker = job.names("worker")[0]
        job.lose(worker)

        def is_lost() -> bool:
            spans = [span for row in page.ask("timeline")["rows"] for span in row["spans"]]
            return any(
                f"{job.name}-{span['process']}" == worker and span["phase"] == "lost" for span in spans
            )

        wait_for("the loss on the page", is_lost, SECONDS)
        lose_master(job, workers=3)
        step = page.ask("status")["job"]["step"]
        wait_for("later steps", lambda: page.ask("status")["job"]["step"] > step + 5, SECONDS)
        wait_for(
            "the other master",
            lambda: any(one["kind"] == "master" for one in page.ask("timeline")["marks"]),
            SECONDS,
        )
        wait_for("its figures", lambda: 'elasticdl_events_total{kind="master"}' in figures(job), SECONDS)
        losses = [point[1] for point in page.ask("series")["series"]["loss"]]
        assert losses[0] < 10
        assert losses == sorted(set(losses))
        assert any("INFO" in line for line in page.ask("logs?process=worker-1-1")["lines"])
        job.go()
        job.summary()
        wait_for("the end on the page", lambda: page.ask("status")["job"]["state"] == "finished", SECONDS)
