"""Heartbeats: said again and again, whatever Python does and whether or not the master is there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl import _core
from elasticdl.errors import BadSetting
from tests.core.members import TOKEN

Sign = tuple[str, int, int, int, float, bool]


def eventually(monitor: _core.HeartMonitor, holds: Callable[[list[Sign]], bool]) -> list[Sign]:
    deadline = time.monotonic() + 30
    while not holds(signs := monitor.poll()):
        assert time.monotonic() < deadline, signs
        time.sleep(0.005)
    return signs


@pytest.mark.parametrize("address", ["unix:{}/heart", "tcp:127.0.0.1:0"])
def test_the_master_hears_what_was_set(tmp_path: Path, address: str) -> None:
    monitor = _core.HeartMonitor(address.format(tmp_path), TOKEN)
    hearts = [_core.Heart(monitor.address, name, TOKEN, 0.02) for name in ("b", "a")]
    hearts[0].set(3, 14, 15)
    eventually(monitor, lambda signs: [sign[:4] for sign in signs] == [("a", 0, 0, 0), ("b", 3, 14, 15)])
    hearts[0].close()
    eventually(monitor, lambda signs: [sign[5] for sign in signs] == [True, False])
    monitor.forget("b")
    assert [sign[0] for sign in monitor.poll()] == ["a"]
    hearts[1].close()
    monitor.close()


def test_beats_go_on_and_a_dead_one_grows_old(tmp_path: Path) -> None:
    monitor = _core.HeartMonitor(f"unix:{tmp_path}/heart", TOKEN)
    code = f"import time; from elasticdl import _core; h = _core.Heart({monitor.address!r}, 'm', {TOKEN!r}, 0.02); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        eventually(monitor, lambda signs: bool(signs) and signs[0][5])
        process.kill()
        eventually(monitor, lambda signs: not signs[0][5] and signs[0][4] > 0.2)
    finally:
        process.kill()
        process.wait()
        monitor.close()


def test_a_master_that_is_late_or_restarted_is_found(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/heart"
    heart = _core.Heart(address, "m", TOKEN, 0.02)
    heart.set(1, 2, 3)
    for _ in range(2):
        monitor = _core.HeartMonitor(address, TOKEN)
        eventually(monitor, lambda signs: [sign[:4] for sign in signs] == [("m", 1, 2, 3)])
        monitor.close()
    heart.close()


def test_another_token_is_not_heard(tmp_path: Path) -> None:
    monitor = _core.HeartMonitor(f"unix:{tmp_path}/heart", TOKEN)
    stranger = _core.Heart(monitor.address, "stranger", b"another", 0.02)
    friend = _core.Heart(monitor.address, "friend", TOKEN, 0.02)
    eventually(monitor, lambda signs: bool(signs))
    time.sleep(0.1)
    assert [sign[0] for sign in monitor.poll()] == ["friend"]
    for heart in (stranger, friend):
        heart.close()
    monitor.close()


def test_a_forgotten_member_stays_forgotten(tmp_path: Path) -> None:
    monitor = _core.HeartMonitor(f"unix:{tmp_path}/heart", TOKEN)
    heart = _core.Heart(monitor.address, "m", TOKEN, 0.01)
    other = _core.Heart(monitor.address, "n", TOKEN, 0.01)
    eventually(monitor, lambda signs: len(signs) == 2)
    monitor.forget("m")
    other.set(1, 1, 1)
    eventually(monitor, lambda signs: signs[-1][3] == 1)
    assert [sign[0] for sign in monitor.poll()] == ["n"]
    heart.close()
    other.close()
    monitor.close()


def test_beats_do_not_need_the_interpreter(tmp_path: Path) -> None:
    monitor = _core.HeartMonitor(f"unix:{tmp_path}/heart", TOKEN)
    # One long call in C that never lets go of the interpreter.
    code = f"""
from elasticdl import _core
heart = _core.Heart({monitor.address!r}, "m", {TOKEN!r}, 0.02)
print("up", flush=True)
10 ** 60_000_000 % 7
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        eventually(monitor, lambda signs: bool(signs) and signs[0][5])
        for _ in range(5):
            young = eventually(monitor, lambda signs: signs[0][4] < 0.1)
            assert young[0][5]
            eventually(monitor, lambda signs: signs[0][4] > 0.005)
    finally:
        process.kill()
        process.communicate()
        monitor.close()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="expected unix:PATH"):
        _core.Heart("nowhere", "m", TOKEN, 0.5)
    with pytest.raises(ValueError, match="interval"):
        _core.Heart(f"unix:{tmp_path}/h", "m", TOKEN, 0.0)
    with pytest.raises(ValueError, match="number of seconds"):
        _core.Heart(f"unix:{tmp_path}/h", "m", TOKEN, -1.0)
