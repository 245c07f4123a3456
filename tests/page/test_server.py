"""A page's server, by its wire: who sees what, and what is said."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from elasticdl.control.protocol.status import EventKind
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.page.port import check_port, listen
from elasticdl.page.recording import Recording
from elasticdl.page.server import PageServer

from .conftest import TOKENS, Served, SomeLogs
from .jobs import event, status

API = ["/api/v1/status", "/api/v1/timeline", "/api/v1/series", "/api/v1/events", "/api/v1/logs"]
PUBLIC = ["/", "/page.js", "/drawing.js", "/page.css", "/icon.svg", "/healthz"]


def get(
    server: PageServer, path: str, authorization: str | None = f"Bearer {TOKENS.page}", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Ask over a connection of its own; return status, headers and body."""
    connection = HTTPConnection(server.address.removeprefix("http://"), timeout=20)
    if authorization is not None:
        headers["Authorization"] = authorization
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def ask(server: PageServer, path: str) -> Any:
    code, _, body = get(server, path)
    assert code == 200, body
    return json.loads(body)


@pytest.mark.parametrize(
    "path", [*API, "/metrics", "/api/v1/none", "/none", "/static/../server.py", "/favicon.ico"]
)
@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Bearer", "Bearer ", "Bearer " + "c" * 64, f"Basic {TOKENS.page}", TOKENS.page, "Bearer " + "a" * 63,
        "Bearer " + "a" * 65, "Bearer " + "a" * 1500, "Bearer \xe9",
    ],
)  # fmt: skip
def test_without_the_token_nothing_is_shown(served: Served, path: str, authorization: str | None) -> None:
    served.recording.status(status(7))
    code, _, body = get(served.server, path, authorization)
    assert code == 401
    assert "token" in body
    assert "worker" not in body


def test_each_token_is_for_one_thing(served: Served) -> None:
    assert get(served.server, "/metrics")[0] == 401
    assert get(served.server, "/api/v1/status", f"Bearer {TOKENS.metrics}")[0] == 401
    assert get(served.server, "/metrics", f"Bearer {TOKENS.metrics}")[0] == 200


@pytest.mark.parametrize("path", PUBLIC)
def test_the_empty_page_is_for_everybody(served: Served, path: str) -> None:
    served.recording.status(status(7))
    code, _, body = get(served.server, path, None)
    assert code == 200
    assert "worker-0" not in body


@pytest.mark.parametrize("path", [*PUBLIC, *API, "/none"])
@pytest.mark.parametrize("authorization", [None, f"Bearer {TOKENS.page}"])
def test_every_answer_says_what_a_browser_may_do_with_it(
    served: Served, path: str, authorization: str | None
) -> None:
    _, headers, _ = get(served.server, path, authorization)
    policy = headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'self'"
    assert "frame-ancestors 'none'" in policy
    assert not any("unsafe" in rule or "http" in rule for rule in policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


def test_a_name_that_was_made_to_lead_here_is_refused(served: Served) -> None:
    port = served.server.address.rpartition(":")[2]
    assert get(served.server, "/", Host=f"evil.example:{port}")[0] == 403
    assert get(served.server, "/api/v1/status", Host=f"evil.example:{port}")[0] == 403
    assert get(served.server, "/api/v1/status", Host="localhost:1")[0] == 200  # a tunnel


@pytest.mark.parametrize("size", [3000, 100_000])
def test_long_requests_are_refused_and_the_next_is_answered(served: Served, size: int) -> None:
    for path, headers in ((f"/?{'x' * size}", {}), ("/", {"Cookie": "x" * size})):
        try:
            code = get(served.server, path, None, **headers)[0]
        except OSError:  # it does not read all of it
            code = 400
        assert 400 <= code < 500
    assert ask(served.server, "/api/v1/status")["job"] is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_can_only_be_read(served: Served, method: str) -> None:
    request = urllib.request.Request(
        f"{served.server.address}/api/v1/status",
        method=method,
        headers={"Authorization": f"Bearer {TOKENS.page}"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 405


def test_noise_closes_its_own_connection_only(served: Served) -> None:
    host, port = served.server.address.removeprefix("http://").split(":")
    for noise in (
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert ask(served.server, "/api/v1/status")["job"] is None


def test_idle_connections_do_not_take_the_master_s_descriptors(served: Served) -> None:
    host, port = served.server.address.removeprefix("http://").split(":")
    before = descriptors()
    with contextlib.ExitStack() as idle:
        for _ in range(160):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=20))
        # Their own ends are in this process, too.
        assert within(lambda: descriptors() - before <= 160 + 110)
    assert within(lambda: ask(served.server, "/api/v1/status")["job"] is None)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def within(holds: Callable[[], bool]) -> bool:
    """Tell whether something holds before long: the server closes connections in its own time."""
    until = monotonic() + 30
    while monotonic() < until:
        with contextlib.suppress(OSError):
            if holds():
                return True
    return False


def test_the_status_is_that_of_the_job(served: Served) -> None:
    assert ask(served.server, "/api/v1/status")["job"] is None
    served.recording.status(status(7))
    body = ask(served.server, "/api/v1/status")
    assert (body["job"]["step"], body["job"]["state"]) == (7, "training")
    assert body["job"]["workers"][1]["waits_for"] == "for 3 s"


def test_events_are_lines_after_a_time(served: Served) -> None:
    for time in (1.0, 2.0, 3.0):
        served.recording.event(event(time, EventKind.NOTE, text=f"line\n{time}"))
    code, headers, body = get(served.server, "/api/v1/events?since=1.0")
    assert code == 200
    assert headers["Content-Type"].startswith("application/x-ndjson")
    assert [json.loads(line)["text"] for line in body.splitlines()] == ["line\n2.0", "line\n3.0"]
    assert get(served.server, "/api/v1/events?since=yesterday")[0] == 400


def test_the_time_line_and_curves(served: Served) -> None:
    served.recording.event(event(1.0, EventKind.JOINED, "worker-0-1"))
    served.recording.event(event(2.0, EventKind.EVALUATED, step=3, values=(("val_loss", 0.5),)))
    line = ask(served.server, "/api/v1/timeline")
    assert [span["phase"] for span in line["rows"][0]["spans"]] == ["starting", "training"]
    assert line["version"] == ask(served.server, "/api/v1/status")["timeline"]
    assert ask(served.server, "/api/v1/series")["series"]["val_loss"] == [[2.0, 3, 0.5]]


def test_the_end_of_a_log(served: Served) -> None:
    assert ask(served.server, "/api/v1/logs") == {"processes": ["master-0-1"], "process": "", "lines": []}
    assert ask(served.server, "/api/v1/logs?process=master-0-1&lines=2")["lines"] == ["two", "three"]
    for asked, code in (
        ("process=worker-0-1", 404),
        ("process=../spec", 404),
        ("process=master-0-1&lines=0", 400),
        ("process=master-0-1&lines=2001", 400),
        ("process=master-0-1&lines=x", 400),
    ):
        assert get(served.server, f"/api/v1/logs?{asked}")[0] == code


@pytest.mark.parametrize(
    "error", [OSError("the volume does not answer"), JobFailed("pods may not be looked at")]
)
def test_a_log_that_can_not_be_read_says_why(served: Served, error: Any) -> None:
    served.logs.error = error
    code, _, body = get(served.server, "/api/v1/logs")
    assert code == 503
    assert str(error) in body


def test_an_error_of_the_page_ends_nothing(served: Served) -> None:
    served.logs.error = ZeroDivisionError()  # type: ignore[assignment]
    code, headers, _ = get(served.server, "/api/v1/logs")
    assert code == 500
    assert "Content-Security-Policy" in headers
    assert ask(served.server, "/api/v1/status")["job"] is None


def test_figures_for_prometheus(served: Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    served.recording.progress(3, 0.75)
    served.recording.status(status(3, loss=0.75))
    served.recording.event(event(2e9, EventKind.EVALUATED, step=3, seconds=1.5, values=(("val_loss", 0.5),)))
    code, headers, body = get(served.server, "/metrics", f"Bearer {TOKENS.metrics}")
    assert code == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    assert found["elasticdl_step",] == 3
    assert found["elasticdl_loss",] == 0.75
    assert found["elasticdl_validation", "val_loss"] == 0.5
    assert found["elasticdl_evaluation_seconds_total",] == 1.5
    assert found["elasticdl_processes", "worker", "training"] == 1
    assert found["elasticdl_processes", "ps", "serving"] == 1
    assert found["elasticdl_wanted_processes", "worker"] == 2
    assert found["elasticdl_state", "training"] == 1
    assert found["elasticdl_events_total", "evaluated"] == 1
    assert all(name.startswith("elasticdl_") for name, *_ in found)


def test_a_port_in_use_is_a_bad_setting(served: Served) -> None:
    port = int(served.server.address.rpartition(":")[2])
    for take in (check_port, listen):
        with pytest.raises(BadSetting, match=f"--status_port: the port {port} .* in use"):
            take(port)


def test_a_closed_page_gives_its_port_back() -> None:
    server = PageServer(Recording(0.0), SomeLogs(), TOKENS, listen(0))
    port = int(server.address.rpartition(":")[2])
    assert get(server, "/healthz", None)[2] == "ok\n"
    server.close()
    check_port(port)


def test_who_parts_waits_for_an_open_page_only(served: Served) -> None:
    served.server.part()  # at once: nobody has looked
    ask(served.server, "/api/v1/status")
    parted = threading.Thread(target=served.server.part)
    parted.start()
    while parted.is_alive():
        ask(served.server, "/api/v1/status")
    parted.join()
