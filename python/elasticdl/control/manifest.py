"""The manifest of a checkpoint: what says that it is whole, what it is of, and where each slot lies.

One JSON object, `manifest.json` in the checkpoint's folder, written last::

    {"format": 1, "number": 3, "job": "deepfm-2", "written_at": 1790000000.5,
     "position": {"low": 96, "above": [98, 99], "roll_back": 0, "step": 0},
     "data": {"shards": [[name, start, count], …], "seed": 7, "shuffle": true, "records_per_task": 512, "minibatch_size": 64,
              "minibatches_per_task": 8, "grads_to_wait": 0},
     "model": {"seed": 7, "slots": 1024, "tables": […], "variables": […], "rule": {…}},
     "slots": [["ps-0-1-1f.slots", slot, reign, offset, length, crc, version, low, until, rows, pushes, sum], …],
     "checksum": "…"}

The position are the tasks that were done when it was begun: those before `low`, and those in `above`. All slots hold these; what else they
hold, they know themselves. With `grads_to_wait` all of them have applied the steps before `step`, and nothing else. `data` is what numbers
of tasks and minibatches mean, `model` is the catalog (`elasticdl.ps.catalog`). Files are named relative to the folder; the format of a slot
in one is that of the core (`ps/snapshot.rs`), where `crc` is the CRC32C of its bytes. `checksum` is the CRC-32, in eight hexadecimal
digits, of the object without it, keys sorted, without spaces. The page `docs/reference/checkpoint-format.md` has all of it for people.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.control.serving import SlotSection
from elasticdl.data.order import Dealing
from elasticdl.data.shard import Shard
from elasticdl.errors import BadData
from elasticdl.spec.drafts import replace_file

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        number: of the checkpoint; later ones have higher numbers.
        job: which wrote it.
        written_at: when, in seconds since the Unix epoch.
        low: all tasks before are done.
        above: tasks beyond that are done, ascending.
        roll_back: how often training had been taken back to a checkpoint.
        dealing: what the numbers of tasks mean.
        model: the catalog, as `elasticdl.ps.catalog.Catalog.to_json` returns it.
        sections: of each slot, in order, the file and where it lies in that.
        step: all slots have applied the steps before it; 0 where each push is applied by itself.
        begun: tasks that are not done, with how many of their first minibatches all slots have; nobody knows that but of a job's last one.
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
    dealing = manifest.dealing
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
        "data": {
            "shards": [[shard.name, shard.start, shard.count] for shard in dealing.shards],
            "seed": dealing.seed,
            "shuffle": dealing.shuffle,
            "records_per_task": dealing.records_per_task,
            "minibatch_size": dealing.minibatch_size,
            "minibatches_per_task": -(-dealing.records_per_task // dealing.minibatch_size),
            "grads_to_wait": dealing.grads_to_wait,
        },
        "model": dict(manifest.model),
        "slots": [[file.name, *section] for file, section in manifest.sections],
    }
    path = folder / NAME
    replace_file(path, json.dumps({**body, "checksum": _checksum(body)}))
    return path


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises BadData, naming the file, if it can't be read, or is of another format, damaged or not whole."""
    try:
        body = json.loads(path.read_bytes())
        told = body.pop("checksum")
        if body["format"] != FORMAT:
            raise BadData(
                f"{path}: written in format {body['format']!r}, this version of elasticdl reads format {FORMAT}"
            )
        if told != _checksum(body):
            raise BadData(f"{path}: its checksum does not hold: it was changed or cut off")
        manifest = _manifest(path.parent, body)
        numbers = [section.slot for _, section in manifest.sections]
        if numbers != list(range(int(body["model"]["slots"]))) or not numbers:
            raise BadData(f"{path}: not every slot is there once: it is not whole")
        return manifest
    except OSError as error:
        raise BadData(f"{path}: the checkpoint can't be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise BadData(f"{path}: it is no manifest of a checkpoint, or was changed or cut off") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadData(f"{path}: it is no manifest of a checkpoint: {error!r}") from None


def _manifest(folder: Path, body: Mapping[str, Any]) -> Manifest:
    position, data = body["position"], body["data"]
    dealing = Dealing(
        shards=tuple(Shard(str(name), int(start), int(count)) for name, start, count in data["shards"]),
        seed=int(data["seed"]),
        shuffle=bool(data["shuffle"]),
        records_per_task=int(data["records_per_task"]),
        minibatch_size=int(data["minibatch_size"]),
        grads_to_wait=int(data.get("grads_to_wait", 0)),
    )
    return Manifest(
        number=int(body["number"]),
        job=str(body["job"]),
        written_at=float(body["written_at"]),
        low=int(position["low"]),
        above=tuple(int(task) for task in position["above"]),
        roll_back=int(position["roll_back"]),
        dealing=dealing,
        model=dict(body["model"]),
        sections=tuple((folder / Path(name).name, SlotSection(*section)) for name, *section in body["slots"]),
        step=int(position.get("step", 0)),
        begun=tuple((int(task), int(chunks)) for task, chunks in position.get("begun", ())),
    )


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
