"""The bytes of a state: whole or refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.checkpoint.stateimage import RunningSums, State, StateImage, decode, encode, write
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import TransferFailed

BODY = np.arange(37, dtype=np.uint8)
STATE = State(
    StateId(7, 3),
    Position(1, 4, 2, 5),
    RunningSums(1.5, 64.0),
    StateImage({"shapes": [[3, 4]], "callbacks": {}}, BODY),
)


def test_decode_returns_what_encode_was_given() -> None:
    back = decode(encode(STATE))
    assert (back.id, back.position, back.sums, back.image.meta) == (
        STATE.id,
        STATE.position,
        STATE.sums,
        STATE.image.meta,
    )
    assert back.image.body.tolist() == BODY.tolist()


@given(st.data())
def test_a_changed_byte_is_refused(data: st.DataObject) -> None:
    raw = encode(STATE)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TransferFailed):
        decode(raw)


@given(st.integers(0, len(encode(STATE)) - 1))
def test_a_cut_state_is_refused(length: int) -> None:
    with pytest.raises(TransferFailed):
        decode(encode(STATE)[:length])


def test_a_foreign_format_is_named() -> None:
    raw = encode(STATE)
    raw[8] = 9
    with pytest.raises(TransferFailed, match="format 9, this version reads format 3"):
        decode(raw)


def test_write_leaves_a_whole_file_or_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "step-7.state"
    write(path, b"first")
    write(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in tmp_path.iterdir()] == ["step-7.state"]


def test_write_cleans_up_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(OSError):
        write(path, b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
