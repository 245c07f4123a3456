"""Who may connect, and where an endpoint listens."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from elasticdl import _core
from elasticdl.errors import BadSetting, RingBroken, TransferFailed
from tests.core.members import DIGEST, TOKEN, endpoints, member, peers


def connect(endpoint: _core.Endpoint) -> socket.socket:
    return connect_to(endpoint.address)


def connect_to(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        stranger = socket.create_connection((host, int(port)))
    stranger.settimeout(20)
    return stranger


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_what_is_no_frame_is_closed_and_counted(tmp_path: Path, transport: str) -> None:
    [endpoint] = endpoints(tmp_path, 1, transport)
    with connect(endpoint) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert closed(stranger)
    assert endpoint.refused == 1
    endpoint.close()


def test_two_addresses_are_listened_at_until_the_end(tmp_path: Path) -> None:
    [endpoint] = endpoints(tmp_path, 1, "hosts:0")
    outside, inside = endpoint.address.split("+")
    assert inside == f"unix:{tmp_path}/0/0"
    for number, address in enumerate((outside, inside), 1):
        with connect_to(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
            assert closed(stranger)
        assert endpoint.refused == number
    endpoint.close()
    assert not (tmp_path / "0/0").exists()
    with pytest.raises(ConnectionRefusedError):
        connect_to(outside)


def test_the_outer_one_of_two_addresses_needs_certificates(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"only with the job's certificates; received tcp:0\.0\.0\.0:"):
        _core.Endpoint(f"tcp:0.0.0.0:0+unix:{tmp_path}/0", member(0), TOKEN)


def closed(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_silent_stranger_holds_nobody_up(tmp_path: Path) -> None:
    ends = endpoints(tmp_path, 2)
    for end in ends:
        end.enter(1, DIGEST)
    with connect(ends[1]), connect(ends[1]):
        image = np.arange(1000, dtype=np.uint8)
        server = _core.StateServer(ends[1], 1, DIGEST, (3, 1), image)
        transfer = _core.StateTransfer(ends[0], 1, DIGEST, (3, 1), peers(ends)[1], 30.0)
        assert transfer.run() == image.tobytes()
        server.close()


def test_another_token_is_refused(tmp_path: Path) -> None:
    [endpoint] = endpoints(tmp_path, 1)
    endpoint.enter(1, DIGEST)
    stranger = _core.Endpoint(f"unix:{tmp_path}/stranger", member(9), TOKEN + b"!")
    stranger.enter(1, DIGEST)
    ring = _core.Ring(
        stranger, 1, DIGEST, 0, [(member(9), stranger.address), (member(0), endpoint.address)], 30.0
    )
    with pytest.raises(RingBroken, match="token") as broken:
        ring.reduce(1, np.ones(2), np.empty(2), [])
    assert (broken.value.rank, broken.value.how) == (1, "refused")
    deadline = time.monotonic() + 20
    while endpoint.refused == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert endpoint.refused == 1


def test_another_member_at_the_address_is_refused(tmp_path: Path) -> None:
    ends = endpoints(tmp_path, 2)
    for end in ends:
        end.enter(1, DIGEST)
    transfer = _core.StateTransfer(ends[0], 1, DIGEST, (3, 1), (member(7), ends[1].address), 30.0)
    with pytest.raises(TransferFailed, match="another member"):
        transfer.run()


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    for first in (
        _core.Endpoint(f"unix:{tmp_path}/s", member(0), TOKEN),
        _core.Endpoint("tcp:127.0.0.1:0", member(0), TOKEN),
    ):
        with pytest.raises(BadSetting, match="in use by another process") as error:
            _core.Endpoint(first.address, member(1), TOKEN)
        assert first.address in str(error.value)
        first.close()


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = f"import os; from elasticdl import _core; e = _core.Endpoint('unix:{path}', 'm', b't'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert path.exists()
    endpoint = _core.Endpoint(f"unix:{path}", member(0), TOKEN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    endpoint.close()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(BadSetting):
        _core.Endpoint(f"unix:{path}", member(0), TOKEN)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "address", ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:127.0.0.1:x", "pipe:x", "unix:/" + "x" * 107]
)
def test_wrong_addresses_are_bad_settings(address: str) -> None:
    with pytest.raises(BadSetting, match="address"):
        _core.Endpoint(address, member(0), TOKEN)


def test_wrong_arguments_are_value_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token is empty"):
        _core.Endpoint(f"unix:{tmp_path}/s", member(0), b"")
    with pytest.raises(ValueError, match="member id"):
        _core.Endpoint(f"unix:{tmp_path}/s", "", TOKEN)
    [endpoint] = endpoints(tmp_path, 1)
    endpoint.enter(2, DIGEST)
    endpoint.enter(2, DIGEST)
    with pytest.raises(ValueError, match="can't be entered"):
        endpoint.enter(1, DIGEST)
    with pytest.raises(ValueError, match="can't be entered"):
        endpoint.enter(2, DIGEST + 1)
    endpoint.seal(5)
    with pytest.raises(ValueError, match="sealed up to 5"):
        endpoint.enter(5, DIGEST)
    with pytest.raises(ValueError, match="not this endpoint's member"):
        _core.Ring(endpoint, 6, DIGEST, 0, [(member(1), endpoint.address)], 5.0)


def test_importing_starts_no_thread() -> None:
    code = "import elasticdl._core, pathlib; print(len(list(pathlib.Path('/proc/self/task').iterdir())))"
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "1"
