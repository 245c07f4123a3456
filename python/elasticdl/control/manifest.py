"""The manifest of a snapshot of parameter servers: what says that it is whole, and where each slot lies.

One JSON object, `manifest.json` in the snapshot's directory, written beside and renamed when all files of slots are there::

    {"format": 1, "number": 3, "low": 96, "above": [98, 99], "slots": [["ps-0-1f.slots", slot, reign, offset, length, crc,
     version, low, rows, pushes, sum], …], "checksum": "…"}

`low` and `above` are the position: the tasks that were done when the snapshot was begun; all slots hold these, and what else they hold they
know themselves. Files are named relative to the directory; the format of a slot in one is that of the core (`ps/snapshot.rs`), where `crc`
is the CRC32C of its bytes. `checksum` is the CRC-32, in eight hexadecimal digits, of the object without it, keys sorted, without spaces.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.control.serving import SlotSection
from elasticdl.errors import BadData

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot holds.

    Attributes:
        number: of the snapshot.
        low: all tasks before are done.
        above: tasks beyond that are done.
        sections: of each slot, in order, the file and where it lies in that.
    """

    number: int
    low: int
    above: Sequence[int]
    sections: Sequence[tuple[Path, SlotSection]]


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Write a manifest, durably, and return its path. Raises OSError."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "number": manifest.number,
        "low": manifest.low,
        "above": list(manifest.above),
        "slots": [[file.name, *section] for file, section in manifest.sections],
    }
    path, draft = directory / NAME, directory / f".{NAME}.draft"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump({**body, "checksum": _checksum(body)}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return path


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises BadData, naming the file, if it can't be read, or is of another format or damaged."""
    try:
        body = json.loads(path.read_bytes())
        told = body.pop("checksum")
        if body["format"] != FORMAT:
            raise BadData(
                f"{path}: written in format {body['format']!r}, this version of elasticdl reads format {FORMAT}"
            )
        if told != _checksum(body):
            raise BadData(f"{path}: its checksum does not hold: it was changed or cut off")
        sections = [
            (path.parent / Path(name).name, SlotSection(*section)) for name, *section in body["slots"]
        ]
        return Manifest(int(body["number"]), int(body["low"]), [int(one) for one in body["above"]], sections)
    except OSError as error:
        raise BadData(f"{path}: the snapshot can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadData(f"{path}: it is no manifest of a snapshot: {error!r}") from None


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
