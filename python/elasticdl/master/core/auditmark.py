"""The master's files in an audit directory: `manifest` before training, `finished` after the end, `accounts` of parameter servers
before it, and their `beginning` if the job continued from a checkpoint.

Their format is stated in `elasticdl/audit.py`, which shares no code with this on purpose: the checker must not be able to make the
same mistake as who writes.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadSetting
from elasticdl.files.drafts import drafts_in, replace_file
from elasticdl.files.permissions import GUARDED, make_guarded

_FORMAT = 1


def write_manifest(
    directory: Path,
    shards: Sequence[Shard],
    *,
    seed: int,
    records_per_task: int,
    minibatch_size: int,
    num_epochs: int,
    has_servers: bool,
    again: bool,
) -> None:
    """Write what the job will train on.

    `serving`: the job has parameter servers.
    `again`: this job may have written it before (the master was restarted). Raises BadSetting if the directory belongs to another
    job, OSError if it can't be written.
    """
    body = {
        "format": _FORMAT,
        "shards": [[shard.name, shard.start, shard.count] for shard in shards],
        "seed": seed,
        "records_per_task": records_per_task,
        "minibatch_size": minibatch_size,
        "num_epochs": num_epochs,
    }
    text = _sealed({**body, "serving": True} if has_servers else body)
    make_guarded(directory)
    path = directory / "manifest"
    if path.exists():
        if again and path.read_text(encoding="utf-8") == text:
            return
        raise BadSetting(
            f"--audit: {directory} holds the records of another job; give an empty directory, or remove it"
        )
    replace_file(path, text, GUARDED)


def write_finished(directory: Path, *, view: int, step: int, state_view: int, complete: bool) -> None:
    """Write which state is the result, in which final view, and whether the data was used up; idempotent."""
    body = {"format": _FORMAT, "view": view, "step": step, "state_view": state_view, "complete": complete}
    replace_file(directory / "finished", _sealed(body), GUARDED)


def write_accounts(directory: Path, slots: Sequence[tuple[int, int, str]]) -> None:
    """Write what each slot of parameter servers has applied: (slot, pushes, sum of their stamps); idempotent."""
    body = {"format": _FORMAT, "slots": [list(slot) for slot in slots]}
    replace_file(directory / "accounts", _sealed(body), GUARDED)


def write_beginning(
    directory: Path,
    *,
    low: int,
    above: Sequence[int],
    slots: Sequence[tuple[int, int, str]],
    checkpoint: str,
    begun: Sequence[tuple[int, int]] = (),
) -> None:
    """Write what was done before the job continued from a checkpoint, and what each slot had applied of that; idempotent.

    `begun`: tasks that were not done, with how many of their first chunks slots held.
    """
    body = {
        "format": _FORMAT,
        "checkpoint": checkpoint,
        "low": low,
        "above": list(above),
        "begun": [list(task) for task in begun],
        "slots": [list(slot) for slot in slots],
    }
    replace_file(directory / "beginning", _sealed(body), GUARDED)


def write_group_beginning(
    directory: Path,
    *,
    checkpoint: str,
    step: int,
    epoch: int,
    done: Sequence[int],
    begun: Sequence[tuple[int, int]],
) -> None:
    """Write the step from which a synchronous job continued, and what was trained before of the epoch that it is in; idempotent.

    `done`: tasks, `begun`: tasks with how many of their first chunks.
    """
    body = {
        "format": _FORMAT,
        "checkpoint": checkpoint,
        "step": step,
        "epoch": epoch,
        "done": sorted(done),
        "begun": [list(task) for task in begun],
    }
    replace_file(directory / "beginning", _sealed(body), GUARDED)


def remove(directory: Path) -> None:
    """Remove what a job has left that ended before its first view: there is nothing to audit, and the next attempt may use the name."""
    if any((directory / name).exists() for name in ("manifest", "finished")):
        with contextlib.suppress(OSError):
            marks = (directory / "manifest", directory / "beginning", *directory.glob("*.audit"))
            for path in (*marks, *drafts_in(directory)):
                path.unlink(missing_ok=True)
            directory.rmdir()


def _sealed(body: dict[str, Any]) -> str:
    content = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "checksum": f"{zlib.crc32(content):08x}"}) + "\n"
