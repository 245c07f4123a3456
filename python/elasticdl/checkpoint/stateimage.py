"""The bytes of a state: what a donor streams.

Layout (integers little-endian): magic `EDLSTATE`, format number u32, length of the head u32, the head as JSON (state id, position, the
loop's running sums, whether its gate was passed, the best metric so far, the adapter's description of its arrays), then the arrays'
bytes, then CRC-32C of everything before it. Not a format for people: it names no framework and is read by the same version only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from elasticdl._core import crc32c
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import TransferFailed
from elasticdl.files import reading

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAGIC = b"EDLSTATE"
_FORMAT = 4
_PREFIX = struct.Struct("<8sII")


@dataclass(frozen=True, slots=True)
class StateImage:
    """A state of the model as one flat run of bytes plus its description, for heals, snapshots and digests.

    `meta` is JSON-able: shapes, dtypes, names, the callbacks' state. `body` is every array's bytes one after the other.
    """

    meta: Mapping[str, Any]
    body: npt.NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunningSums:
    """What the loop itself carries from step to step, equal in all members.

    Attributes:
        loss: sum of the losses of the epoch's examples so far, where they are known.
        examples: number of those examples.
    """

    loss: float = 0.0
    examples: float = 0.0


class Best(NamedTuple):
    """The best value so far of the metric by which checkpoints are chosen, and the step of its state."""

    value: float
    step: int


@dataclass(frozen=True, slots=True)
class State:
    """A whole state with its name."""

    id: StateId
    position: Position
    sums: RunningSums
    image: StateImage
    passed: bool = False
    """The state's gate was passed: what callbacks did there is part of the image."""
    best: Best | None = None
    """None before the first evaluation, and where no checkpoint is chosen by a metric."""


def head_to_json(
    sums: RunningSums, passed: bool, best: Best | None, meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a state has beside its name and the bytes of its arrays, as `read_head` reads it."""
    return {
        "sums": asdict(sums),
        "passed": passed,
        "best": None if best is None else list(best),
        "meta": meta,
    }


def read_head(head: object) -> tuple[RunningSums, bool, Best | None, Mapping[str, Any]]:
    """Read what `head_to_json` returned. Raises ValueError or, for other sums, TypeError."""
    sums = RunningSums(
        **{name: reading.number(value, finite=False) for name, value in _numbers(head, "sums").items()}
    )
    best = reading.field(head, "best")
    if best is not None:
        value, step = reading.items(best, 2)
        best = Best(reading.number(value, finite=False), reading.integer(step))
    meta = reading.fields(reading.field(head, "meta"))
    return sums, reading.flag(reading.field(head, "passed")), best, meta


def encode(state: State) -> bytearray:
    """Return the state's bytes."""
    import numpy as np  # not at the top: masters know states by their heads alone

    head = json.dumps(
        {
            "state": asdict(state.id),
            "position": asdict(state.position),
            "sums": asdict(state.sums),
            **head_to_json(state.sums, state.passed, state.best, state.image.meta),
        }
    ).encode()
    body = state.image.body
    size = _PREFIX.size + len(head) + body.nbytes
    data = bytearray(size + 4)
    _PREFIX.pack_into(data, 0, _MAGIC, _FORMAT, len(head))
    data[_PREFIX.size : _PREFIX.size + len(head)] = head
    np.frombuffer(data, np.uint8, body.nbytes, _PREFIX.size + len(head))[:] = body
    struct.pack_into("<I", data, size, crc32c(memoryview(data)[:size]))
    return data


def decode(data: bytes | bytearray | memoryview) -> State:
    """Read what `encode` wrote; the arrays stay views into `data`.

    Raises:
        TransferFailed: wrong magic, format, length or checksum.
    """
    import numpy as np

    view = memoryview(data)
    if len(view) < _PREFIX.size + 4:
        raise TransferFailed(f"a state of {len(view)} bytes is too short")
    magic, number, length = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise TransferFailed("these bytes are not a state of ElasticDL")
    if number != _FORMAT:
        raise TransferFailed(f"the state has format {number}, this version reads format {_FORMAT}")
    size = len(view) - 4
    (expected,) = struct.unpack_from("<I", view, size)
    if crc32c(view[:size]) != expected:
        raise TransferFailed("the state's checksum does not match")
    start = _PREFIX.size + length
    if start > size:
        raise TransferFailed(f"the state's head of {length} bytes is longer than the state")
    try:
        head = reading.load(bytes(view[_PREFIX.size : start]))
        state, position = (_numbers(head, name) for name in ("state", "position"))
        sums, passed, best, meta = read_head(head)
        return State(
            StateId(**{name: reading.integer(value) for name, value in state.items()}),
            Position(**{name: reading.integer(value) for name, value in position.items()}),
            sums,
            StateImage(meta, np.frombuffer(view, np.uint8, size - start, start)),
            passed,
            best,
        )
    except (ValueError, TypeError) as error:  # TypeError: other names than those of the values
        raise TransferFailed(f"the state's head is damaged: {error}") from None


def _numbers(head: object, name: str) -> dict[str, Any]:
    return reading.fields(reading.field(head, name))
