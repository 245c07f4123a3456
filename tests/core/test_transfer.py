"""State transfer: whole or not at all, acknowledged or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elasticdl import _core
from elasticdl.errors import Cancelled, TransferFailed
from tests.core.members import DIGEST, TOKEN, TRANSPORTS, endpoints, member, peers, side_by_side

STATE = (7, 1)


@pytest.fixture(params=(*TRANSPORTS, "safe-hosts:0011"))
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[_core.Endpoint]]:
    found = endpoints(tmp_path, 4, request.param)
    for end in found:
        end.enter(1, DIGEST)
    yield found
    for end in found:
        end.close()


def transfer(
    ends: list[_core.Endpoint], rank: int, state: tuple[int, int] = STATE, silence: float = 30.0
) -> _core.StateTransfer:
    return _core.StateTransfer(ends[rank], 1, DIGEST, state, peers(ends)[0], silence)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 3_000_001])
def test_several_healees_get_the_image(ends: list[_core.Endpoint], size: int) -> None:
    image = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    server = _core.StateServer(ends[0], 1, DIGEST, STATE, image)
    healees = [transfer(ends, rank) for rank in (1, 2, 3)]
    for got in side_by_side(*(healee.run for healee in healees)):
        assert isinstance(got, bytearray)
        assert got == image.tobytes()
    assert server.wait(0) == []
    for healee in healees:
        healee.acknowledge()
    ended: list[tuple[str, bool]] = []
    while len(ended) < 3:
        more = server.wait(20)
        assert more, "an acknowledgement is missing"
        ended += more
    assert sorted(ended) == [(member(rank), True) for rank in (1, 2, 3)]
    server.close()


@pytest.mark.parametrize("state", [(8, 1), (7, 2)])
def test_another_state_is_not_served(ends: list[_core.Endpoint], state: tuple[int, int]) -> None:
    server = _core.StateServer(ends[0], 1, DIGEST, STATE, b"image")
    with pytest.raises(TransferFailed, match=r"serves state \(7, 1\)"):
        transfer(ends, 1, state).run()
    assert server.wait(0) == []
    server.close()


def test_a_healee_that_leaves_is_reported(ends: list[_core.Endpoint]) -> None:
    server = _core.StateServer(ends[0], 1, DIGEST, STATE, bytes(1000))
    healee = transfer(ends, 1)
    healee.run()
    del healee
    assert server.wait(20) == [(member(1), False)]
    server.close()


def test_a_healee_killed_in_mid_transfer_is_reported(tmp_path: Path) -> None:
    [donor] = endpoints(tmp_path, 1)
    donor.enter(1, DIGEST)
    server = _core.StateServer(donor, 1, DIGEST, STATE, bytes(64 << 20))
    code = f"""
import os, threading
from elasticdl import _core
end = _core.Endpoint("unix:{tmp_path}/healee", "{member(1)}", {TOKEN!r})
end.enter(1, {DIGEST})
_core.StateTransfer(end, 1, {DIGEST}, {STATE}, ("{member(0)}", "{donor.address}"), 30.0).run()
os.kill(os.getpid(), {signal.SIGKILL.value})
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    assert server.wait(60) == [(member(1), False)]
    assert process.wait(60) == -signal.SIGKILL
    server.close()


def test_closing_the_server_breaks_transfers_off(ends: list[_core.Endpoint]) -> None:
    image = bytearray(1000)
    server = _core.StateServer(ends[0], 1, DIGEST, STATE, image)
    healee = transfer(ends, 1)
    healee.run()
    with pytest.raises(BufferError):
        image.append(0)
    server.close()
    image.append(0)
    assert server.wait(0) == [(member(1), False)]
    with pytest.raises(TransferFailed):
        transfer(ends, 2, silence=0.5).run()


def test_a_dead_donor_is_a_failure(tmp_path: Path) -> None:
    ends = endpoints(tmp_path, 2)
    ends[1].enter(1, DIGEST)
    ends[0].close()
    with pytest.raises(TransferFailed, match="no connection"):
        transfer(ends, 1, silence=0.3).run()


def test_cancel_ends_a_blocked_transfer(ends: list[_core.Endpoint]) -> None:
    healee = transfer(ends, 1)
    timer = threading.Timer(0.2, healee.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        healee.run()
    timer.join()


def test_a_server_that_comes_after_its_healee_serves_it(ends: list[_core.Endpoint]) -> None:
    # To make an image takes longer than anybody may be silent in the middle of one, which a handshake on a busy machine is, too.
    healee = transfer(ends, 1, silence=0.5)
    servers: list[_core.StateServer] = []
    timer = threading.Timer(
        1.2, lambda: servers.append(_core.StateServer(ends[0], 1, DIGEST, STATE, b"state"))
    )
    timer.start()
    assert healee.run() == b"state"
    timer.join()
    servers[0].close()


def test_acknowledging_nothing_is_an_error(ends: list[_core.Endpoint]) -> None:
    with pytest.raises(ValueError, match="no complete transfer"):
        transfer(ends, 1).acknowledge()


def test_waiting_leaves_the_interpreter_to_signals(ends: list[_core.Endpoint]) -> None:
    class Ringing(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Ringing

    server = _core.StateServer(ends[0], 1, DIGEST, STATE, b"state")
    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Ringing):
            server.wait(60)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        server.close()
