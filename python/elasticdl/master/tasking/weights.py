"""The checkpoint with whose weights a job evaluates or predicts: which one is meant, and what of it is looked at before workers read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.choosing import check_has_model, newest_whole
from elasticdl.checkpoint.manifest import NAME
from elasticdl.master.core.resuming import FLAG
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class WeightsCheckpoint:
    """A checkpoint that was found.

    Attributes:
        path: of the manifest.
        passed_over: what is said of newer ones that are damaged; empty if there are none.
    """

    path: Path
    passed_over: str = ""


def open_checkpoint(spec: JobSpec, *, verify: bool) -> WeightsCheckpoint | None:
    """Find the checkpoint that a job is given, None if its weights are in a file. Raises BadInput.

    `verify`: as in `newest_whole`; each worker reads all of the one that is found, and compares it with its checksums.
    """
    if not spec.checkpoint_dir_for_init:
        return None
    folder, manifest, passed_over = newest_whole(
        spec.checkpoint_dir_for_init, checkpoints.read_any, FLAG, verify=verify
    )
    check_has_model(folder, manifest, FLAG)
    return WeightsCheckpoint(folder / NAME, passed_over)
