"""Checkpoints of synchronous jobs: the manifest, and the parts of a state that members have written.

Each member of a view writes its range of the state's bytes to a file of its own; the manifest says which state they make together, and is
written when all parts are there. One JSON object, sealed as that of a job with parameter servers (`manifest.py`)::

    {"format": 1, "kind": "group", "number": 3, "job": "mnist-2", "written_at": 1790000000.5,
     "state": [1200, 4], "position": [2, 16, 8, 3],
     "data": {"shards": [[name, start, count], …], …},
     "sums": {"loss": 12.5, "examples": 640.0}, "passed": false, "best": [0.25, 1000],
     "meta": {"arrays": [{"name": …, "shape": […], "dtype": …, "bytes": …}, …], "callbacks": …},
     "parts": [["part-0", bytes, crc], …],
     "checksum": "…"}

`state` is the number of committed steps and the view that committed the last one; `position` is epoch, first task of the wave, tasks of the
wave, and the minibatch of each that comes next. The parts one after the other are the bytes of the arrays, in their order; `crc` is the
CRC32C of a part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from elasticdl._core import crc32c
from elasticdl.checkpoint.manifest import (
    FORMAT,
    Kind,
    check_sizes,
    dealing_to_json,
    file_beside,
    read_body,
    read_dealing,
    read_time,
    write_body,
)
from elasticdl.checkpoint.stateimage import Best, RunningSums, State, StateImage, head_to_json, read_head
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadData
from elasticdl.files import reading
from elasticdl.files.drafts import replacing
from elasticdl.files.reading import integer

HEAD = "head.json"
"""What a state has beside the bytes of its arrays, until the manifest has it."""

_CRC = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a state's arrays.

    Attributes:
        file: that has them, and nothing else.
        size: how many.
        crc: their CRC32C.
    """

    file: Path
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class GroupManifest:
    """What a checkpoint of a synchronous job holds.

    Attributes:
        number: of the checkpoint; later ones have higher numbers.
        job: which wrote it.
        written_at: when, in seconds since the Unix epoch.
        state: whose.
        position: of that state.
        dealing: what the position means.
        sums: what the loop carries from step to step.
        passed: callbacks have had the metrics of the state.
        best: the best metric so far, None where no checkpoint is chosen by one.
        meta: the description of the arrays, and of callbacks.
        parts: the bytes of the arrays, one part after the other.
    """

    number: int
    job: str
    written_at: float
    state: StateId
    position: Position
    dealing: Dealing
    sums: RunningSums
    passed: bool
    best: Best | None
    meta: Mapping[str, Any]
    parts: tuple[Part, ...]

    @property
    def is_best(self) -> bool:
        """Tell whether its state had the best metric so far when it was written."""
        return self.passed and self.best is not None and self.best.step == self.state.step

    @property
    def is_between_epochs(self) -> bool:
        """Tell whether the next step is the first of an epoch: then the data may be dealt out otherwise."""
        return self.position.first_task == 0 and self.position.chunk == 0

    @property
    def size(self) -> int:
        """Return the bytes of the state's arrays."""
        return sum(part.size for part in self.parts)

    def sizes(self) -> dict[Path, int]:
        """Return the sizes that its files must have, in bytes."""
        return {part.file: part.size for part in self.parts}


# ------------------------------------------------------------------ writing


def range_of(rank: int, members: int, size: int) -> tuple[int, int]:
    """Return the first byte of a member's part of a state of `size` bytes, and the end."""
    return size * rank // members, size * (rank + 1) // members


def write_part(path: Path, content: memoryview) -> None:
    """Write a member's part, durably. Raises OSError."""
    with replacing(path) as file:
        file.write(content)


def write_head(folder: Path, head: bytes) -> None:
    """Write what a state has beside its arrays, durably. Raises OSError."""
    with replacing(folder / HEAD) as file:
        file.write(head)


def head_of(sums: RunningSums, passed: bool, best: Best | None, meta: Mapping[str, Any]) -> bytes:
    """Return what a state has beside the bytes of its arrays."""
    return json.dumps(head_to_json(sums, passed, best, meta), separators=(",", ":")).encode()


def digest_of(head: bytes) -> str:
    """Return a digest of what `head_of` returned, equal in all members (hexadecimal)."""
    return hashlib.blake2b(head, digest_size=16).hexdigest()


def complete(
    folder: Path,
    *,
    number: int,
    job: str,
    written_at: float,
    state: StateId,
    position: Position,
    dealing: Dealing,
    head: str,
    parts: tuple[Part, ...],
) -> Path:
    """Write the manifest of a state whose parts are in a folder, and return its path; `head`: the digest of what is beside the arrays.

    Raises OSError, or BadData if the head is not the one that members have described.
    """
    content = (folder / HEAD).read_bytes()
    if digest_of(content) != head:
        raise BadData(f"{folder / HEAD}: it is not what the members have described")
    path = write_body(
        folder,
        {
            "format": FORMAT,
            "kind": Kind.GROUP,
            "number": number,
            "job": job,
            "written_at": written_at,
            "state": list(astuple(state)),
            "position": list(astuple(position)),
            "data": dealing_to_json(dealing),
            **json.loads(content),
            "parts": [[part.file.name, part.size, part.crc] for part in parts],
        },
    )
    (folder / HEAD).unlink(missing_ok=True)
    return path


# ------------------------------------------------------------------ reading


def read_group(path: Path, body: Mapping[str, Any]) -> GroupManifest:
    """Read the fields of a manifest. Raises ValueError or BadData."""
    try:
        sums, passed, best, meta = read_head(body)
        state = StateId(*map(integer, reading.items(reading.field(body, "state"), 2)))
        position = Position(*map(integer, reading.items(reading.field(body, "position"), 4)))
    except TypeError as error:  # other names than those of the sums
        raise ValueError(str(error)) from None
    parts = tuple(_part(path.parent, one) for one in reading.items(reading.field(body, "parts")))
    if not parts or len({part.file for part in parts}) != len(parts):
        raise BadData(f"{path}: not every part is there once: it is not whole")
    return GroupManifest(
        number=integer(reading.field(body, "number")),
        job=reading.text(reading.field(body, "job")),
        written_at=read_time(reading.field(body, "written_at")),
        state=state,
        position=position,
        dealing=read_dealing(reading.fields(reading.field(body, "data"))),
        sums=sums,
        passed=passed,
        best=best,
        meta=meta,
        parts=parts,
    )


def _part(folder: Path, body: object) -> Part:
    name, size, crc = reading.items(body, 3)
    return Part(file_beside(folder, name), integer(size), integer(crc, most=_CRC))


def read_state(path: Path) -> State:
    """Read the state of the checkpoint whose manifest is at `path`. Raises BadData, naming the file, if it is damaged."""
    import numpy as np  # masters read manifests alone

    manifest = read_body(path, {Kind.GROUP: read_group})
    check_sizes(manifest.sizes())  # before as much memory is taken
    body = np.empty(manifest.size, np.uint8)
    start = 0
    for part in manifest.parts:
        place = memoryview(body[start : start + part.size].data)
        try:
            with open(part.file, "rb", buffering=0) as file:
                filled = 0
                while filled < part.size and (count := file.readinto(place[filled:])):
                    filled += count
        except OSError as error:
            raise BadData(f"{part.file}: the checkpoint can't be read: {error.strerror}") from None
        if filled < part.size:
            raise BadData(f"{part.file}: the checkpoint is damaged: the file ends after {filled:,} bytes")
        if crc32c(place) != part.crc:
            raise BadData(f"{part.file}: the checkpoint is damaged: its checksum does not hold")
        start += part.size
    image = StateImage(manifest.meta, body)
    return State(manifest.state, manifest.position, manifest.sums, image, manifest.passed, manifest.best)
