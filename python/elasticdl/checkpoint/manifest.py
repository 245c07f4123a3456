"""The manifest of a checkpoint: what says that it is whole, what it is of, and where each slot lies.

What all manifests share is here, too; that of a synchronous job is in `group.py`. One JSON object, `manifest.json` in the checkpoint's
folder, written last::

    {"format": 1, "number": 3, "job": "deepfm-2", "written_at": 1790000000.5,
     "position": {"low": 96, "above": [98, 99], "roll_back": 0, "step": 0},
     "data": {"shards": [[name, start, count], …], "block": 1, "seed": 7, "shuffle": true, "records_per_task": 512,
              "minibatch_size": 64, "minibatches_per_task": 8, "grads_to_wait": 0},
     "model": {"seed": 7, "slots": 1024, "tables": […], "variables": […], "rule": {…}},
     "barriers": [[1000, 0, 64, 0, true, [["val_loss", 0.25], …]], …], "best": false,
     "slots": [["ps-0-1-1f.slots", slot, primary epoch, offset, length, crc, version, low, until, rows, pushes, sum], …],
     "checksum": "…"}

The position are the tasks that were done when it was begun: those before `low`, and those in `above`. All slots hold these; what else they
hold, they know themselves. With `grads_to_wait` all of them have applied the steps before `step`, and nothing else. `barriers` were passed
before: of each its step, roll-back, task and epoch, whether that ended there, and the metrics; `best` says that those of the last one, of
which the checkpoint is, were the best so far. `data` is what numbers of tasks and minibatches mean, `model` is the catalog
(`catalog/catalog.py`). Files are named relative to the folder; the format of a slot in one is that of the core (`ps/server/snapshot.rs`),
where `crc` is the CRC32C of its bytes. `checksum` is the CRC-32, in eight hexadecimal digits, of the object without it, keys sorted,
without spaces. The page `docs/reference/checkpoint-format.md` has all of it for people.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData
from elasticdl.files import reading
from elasticdl.files.drafts import replace_file
from elasticdl.files.reading import integer

FORMAT = 1
NAME = "manifest.json"

_EPOCHS = 1 << 22
"""More than any job has; some counts are kept for each."""
_WORD, _CRC = (1 << 64) - 1, (1 << 32) - 1
"""Of the core."""
_YEAR_9999 = 253_402_300_799
"""In seconds since the Unix epoch; the calendar of most programs ends there."""

_Read = TypeVar("_Read")


class Kind(StrEnum):
    """What a checkpoint is of; a manifest that does not say it is of servers."""

    SERVERS = "servers"
    """A job with parameter servers."""
    GROUP = "group"
    """A synchronous job."""


class OtherKind(BadData):
    """A checkpoint that is whole, as far as anybody knows, and that this reader can't read."""


_OF = {Kind.SERVERS: "a job with parameter servers", Kind.GROUP: "a job without parameter servers"}


class Barrier(NamedTuple):
    """A barrier that was passed: callbacks of a job that continues have to know of it, and so has the choice of the best checkpoint.

    Attributes:
        step: before it.
        roll_back: in which it was evaluated.
        task: all before it were done.
        epoch: of the last of these.
        epoch_ended: it ended there.
        values: metrics by name, none if nothing was evaluated.
    """

    step: int
    roll_back: int
    task: int
    epoch: int
    epoch_ended: bool
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint of a job with parameter servers holds.

    Attributes:
        number: of the checkpoint; later ones have higher numbers.
        job: which wrote it.
        written_at: when, in seconds since the Unix epoch.
        low: all tasks before are done.
        above: tasks beyond that are done, ascending.
        roll_back: how often training had been taken back to a checkpoint.
        dealing: what the numbers of tasks mean.
        model: the catalog, as `elasticdl.catalog.catalog.Catalog.to_json` returns it.
        sections: of each slot, in order, the file and where it lies in that.
        step: all slots have applied the steps before it; 0 where each push is applied by itself.
        begun: tasks that are not done, with how many of their first minibatches all slots have; nobody knows that but of a job's last one.
        barriers: that were passed up to its position, in their order.
        is_best: the metrics of the last barrier, of which it is, were the best so far.
    """

    number: int
    job: str
    written_at: float
    low: int
    above: tuple[int, ...]
    roll_back: int
    dealing: Dealing
    model: Mapping[str, Any]
    sections: tuple[tuple[Path, SlotSection], ...]
    step: int = 0
    begun: tuple[tuple[int, int], ...] = ()
    barriers: tuple[Barrier, ...] = ()
    is_best: bool = False

    @property
    def is_between_tasks(self) -> bool:
        """Tell whether no slot holds anything beyond the position, and that has no gaps: no memory of tasks is needed to go on."""
        return not self.above and all(section.until <= self.low for _, section in self.sections)

    def sizes(self) -> dict[Path, int]:
        """Return the sizes that its files must have, in bytes."""
        found: dict[Path, int] = {}
        for file, section in self.sections:
            found[file] = max(found.get(file, 0), section.offset + section.length)
        return found


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write a manifest, durably, and return its path. Raises OSError."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "number": manifest.number,
        "job": manifest.job,
        "written_at": manifest.written_at,
        "position": {
            "low": manifest.low,
            "above": list(manifest.above),
            "roll_back": manifest.roll_back,
            "step": manifest.step,
            "begun": [list(task) for task in manifest.begun],
        },
        "barriers": [[*one[:-1], [list(value) for value in one.values]] for one in manifest.barriers],
        "best": manifest.is_best,
        "data": dealing_to_json(manifest.dealing),
        "model": dict(manifest.model),
        "slots": [[file.name, *section] for file, section in manifest.sections],
    }
    return write_body(folder, body)


def write_body(folder: Path, body: Mapping[str, Any]) -> Path:
    """Write a manifest of these fields, durably, and return its path. Raises OSError."""
    path = folder / NAME
    replace_file(path, json.dumps({**body, "checksum": _checksum(body)}))
    return path


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises BadData, naming the file, if it can't be read, or is of another format, kind, damaged or not whole."""
    return read_body(path, {Kind.SERVERS: read_servers})


def read_body(path: Path, readers: Mapping[Kind, Callable[[Path, Mapping[str, Any]], _Read]]) -> _Read:
    """Read a manifest of one of these kinds, each by its reader. Raises BadData, naming the file."""
    try:
        body = reading.fields(reading.load_file(path))
        told = body.pop("checksum", None)
        if reading.field(body, "format") != FORMAT:
            raise OtherKind(
                f"{path}: written in format {body['format']!r}, this version of elasticdl reads format {FORMAT}"
            )
        if told != _checksum(body):
            raise BadData(f"{path}: its checksum does not hold: it was changed or cut off")
        kind = Kind(reading.text(body.get("kind", Kind.SERVERS.value)))
        if kind not in readers:
            raise OtherKind(
                f"{path}: it is a checkpoint of {_OF[kind]}, and one of {_OF[next(iter(readers))]} is needed"
            )
        return readers[kind](path, body)
    except OSError as error:
        raise BadData(f"{path}: the checkpoint can't be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeError):
        raise BadData(f"{path}: it is no manifest of a checkpoint, or was changed or cut off") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: it is no manifest of a checkpoint: {error}") from None


def check_sizes(sizes: Mapping[Path, int]) -> None:
    """Look whether all files of a checkpoint are there, as long as they have to be. Raises BadData."""
    for file, expected in sizes.items():
        try:
            size = file.stat().st_size
        except OSError as error:
            raise BadData(f"{file}: the checkpoint is not whole: {error.strerror}") from None
        if size != expected:
            raise BadData(
                f"{file}: the checkpoint is damaged: the file has {size:,} bytes, and the manifest says {expected:,}"
            )


def read_servers(path: Path, body: Mapping[str, Any]) -> Manifest:
    """Read the fields of a manifest of servers. Raises ValueError or BadData."""
    position, model = (
        reading.fields(reading.field(body, "position")),
        reading.fields(reading.field(body, "model")),
    )
    dealing = read_dealing(reading.fields(reading.field(body, "data")))
    # Numbers of tasks count through all epochs.
    last = _EPOCHS * sum(-(-shard.count // dealing.records_per_task) for shard in dealing.shards)
    slots = reading.items(reading.field(body, "slots"))
    if not slots or reading.field(model, "slots") != len(slots):
        raise BadData(f"{path}: not every slot is there once: it is not whole")
    sections = tuple(_section(path.parent, one) for one in slots)
    if any(section.slot != slot for slot, (_, section) in enumerate(sections)):
        raise BadData(f"{path}: not every slot is there once: it is not whole")
    return Manifest(
        number=integer(reading.field(body, "number")),
        job=reading.text(reading.field(body, "job")),
        written_at=read_time(reading.field(body, "written_at")),
        low=integer(reading.field(position, "low"), most=last),
        above=tuple(integer(task, most=last) for task in reading.items(reading.field(position, "above"))),
        roll_back=integer(reading.field(position, "roll_back")),
        dealing=dealing,
        model=model,
        sections=sections,
        step=integer(position.get("step", 0)),
        begun=tuple(_begun(one, last) for one in reading.items(position.get("begun", []))),
        barriers=tuple(_barrier(one, last) for one in reading.items(body.get("barriers", []))),
        is_best=reading.flag(body.get("best", False)),
    )


def dealing_to_json(dealing: Dealing) -> dict[str, Any]:
    """Return how data is dealt out, as `read_dealing` reads it."""
    return {
        "shards": [[shard.name, shard.start, shard.count] for shard in dealing.shards],
        "seed": dealing.seed,
        "shuffle": dealing.shuffle,
        "block": max(shard.block for shard in dealing.shards),
        "records_per_task": dealing.records_per_task,
        "minibatch_size": dealing.minibatch_size,
        "minibatches_per_task": -(-dealing.records_per_task // dealing.minibatch_size),
        "grads_to_wait": dealing.grads_to_wait,
        **({"by_record": True} if dealing.by_record else {}),
    }


def read_dealing(data: Mapping[str, Any]) -> Dealing:
    """Read how data is dealt out. Raises ValueError."""
    block = integer(data.get("block", 1), 1)
    shards = tuple(_shard(one, block) for one in reading.items(reading.field(data, "shards")))
    if not any(shard.count for shard in shards):
        raise ValueError("its data has no records")
    return Dealing(
        shards=shards,
        seed=integer(reading.field(data, "seed"), -reading.LARGEST),
        shuffle=reading.flag(reading.field(data, "shuffle")),
        records_per_task=integer(reading.field(data, "records_per_task"), 1),
        minibatch_size=integer(reading.field(data, "minibatch_size"), 1),
        grads_to_wait=integer(data.get("grads_to_wait", 0)),
        by_record=reading.flag(data.get("by_record", False)),
    )


def _shard(body: object, block: int) -> Shard:
    name, start, count = reading.items(body, 3)
    return Shard(reading.text(name), integer(start), integer(count), block)


def _section(folder: Path, body: object) -> tuple[Path, SlotSection]:
    file, *numbers, proof = reading.items(body, 1 + len(SlotSection._fields))
    path = file_beside(folder, file)
    if len(reading.text(proof)) != 32 or proof.strip("0123456789abcdef"):
        raise ValueError(f"expected a sum of 32 hexadecimal digits, received {proof[:40]!r}")
    section = SlotSection._make((*(integer(one, most=_WORD) for one in numbers), proof))
    integer(section.crc, most=_CRC)
    return path, section


def file_beside(folder: Path, value: object) -> Path:
    """Return the path of a file in the checkpoint's folder by its name. Raises ValueError."""
    name = reading.text(value)
    if Path(name).name != name or name == ".." or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file beside it")
    return folder / name


def _begun(body: object, last: int) -> tuple[int, int]:
    task, chunks = reading.items(body, 2)
    return integer(task, most=last), integer(chunks)


def _barrier(body: object, last: int) -> Barrier:
    step, roll_back, task, epoch, epoch_ended, values = reading.items(body, 6)
    return Barrier(
        integer(step),
        integer(roll_back),
        integer(task, most=last),
        integer(epoch, most=_EPOCHS),
        reading.flag(epoch_ended),
        tuple(_value(one) for one in reading.items(values)),
    )


def _value(body: object) -> tuple[str, float]:
    name, value = reading.items(body, 2)
    return reading.text(name), reading.number(value, finite=False)


def read_time(value: object) -> float:
    """Read a time in seconds since the Unix epoch. Raises ValueError."""
    seconds = reading.number(value)
    if not 0 <= seconds <= _YEAR_9999:
        raise ValueError(f"{seconds} is no time")
    return seconds


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
