"""The bytes of a state: whole or refused."""

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.checkpoint.group import range_of
from elasticdl.checkpoint.stateimage import Best, RunningSums, State, StateImage, decode, encode
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import TransferFailed
from elasticdl.reference.adapter import Variable
from elasticdl.worker.imagepart import copied
from elasticdl.worker.modelstate import ModelState

BODY = np.arange(37, dtype=np.uint8)
STATE = State(
    StateId(7, 3),
    Position(1, 4, 2, 5),
    RunningSums(1.5, 64.0),
    StateImage({"shapes": [[3, 4]], "callbacks": {}}, BODY),
    True,
    Best(0.25, 5),
)


def test_decode_returns_what_encode_was_given() -> None:
    back = decode(encode(STATE))
    assert dataclasses.replace(back, image=STATE.image) == STATE
    assert back.image.meta == STATE.image.meta
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
    with pytest.raises(TransferFailed, match="format 9, this version reads format 4"):
        decode(raw)


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 5))
def test_parts_of_members_make_the_image_that_one_would_have_made(sizes: list[int], members: int) -> None:
    draw = np.random.default_rng(7)
    variables = [Variable(f"v{place}", draw.random(size)) for place, size in enumerate(sizes)]
    state = ModelState([*variables, Variable("steps", np.array(3))])
    ranges = [range_of(rank, members, state.size) for rank in range(members)]
    assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    parts = [state.part(first, end) for first, end in ranges]
    assert max(map(len, parts)) <= -(-state.size // members)
    assert np.concatenate(parts).tobytes() == state.image([]).body.tobytes()


def test_a_large_part_is_copied_by_two_threads_and_is_the_same() -> None:
    arrays = np.split(np.random.default_rng(7).integers(0, 256, 24 << 20, np.uint8), [5, 1 << 20, 9 << 20])
    first, end = 3, (24 << 20) - 7
    threads = set()

    def piece(place: int, low: int, high: int) -> np.ndarray:
        threads.add(threading.get_ident())
        return arrays[place][low:high]

    part = copied(first, end, [one.size for one in arrays], piece)
    assert part.tobytes() == np.concatenate(arrays)[first:end].tobytes()
    assert len(threads) == 2

    def lost(place: int, low: int, high: int) -> np.ndarray:
        if place == 3:
            raise RuntimeError("no memory on the device")
        return piece(place, low, high)

    with pytest.raises(RuntimeError, match="no memory on the device"):
        copied(first, end, [one.size for one in arrays], lost)
