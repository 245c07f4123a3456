"""The checkpoint with whose weights a job evaluates or predicts: which one is meant, and what of it is looked at before workers read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.comparing import compare
from elasticdl.checkpoint.group import GroupManifest
from elasticdl.checkpoint.manifest import NAME, Manifest
from elasticdl.master.core.resuming import newest_whole
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

    `verify`: read all of one, not only the manifest. One of servers that was named itself is left to the workers, each of which reads all
    of it and compares it with its checksums: no other could take its place.
    """

    def read(folder: Path) -> Manifest | GroupManifest:
        manifest = checkpoints.read_any(folder)
        is_named = folder == Path(spec.checkpoint_dir_for_init)
        if verify and (isinstance(manifest, GroupManifest) or not is_named):
            compare(manifest)
        return manifest

    if not spec.checkpoint_dir_for_init:
        return None
    folder, _, passed_over = newest_whole(spec.checkpoint_dir_for_init, read)
    return WeightsCheckpoint(folder / NAME, passed_over)
