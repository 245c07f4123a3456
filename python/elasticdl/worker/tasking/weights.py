"""Where the weights are with which a job evaluates or predicts, as its settings and its master say."""

from __future__ import annotations

from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.group import GroupManifest, read_state
from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadData
from elasticdl.worker.contract.trained import GroupState, Weights


def weights_of_checkpoint(manifest: Path, room: Path) -> Weights:
    """Read a checkpoint; `room`: a folder for what is looked up. Raises BadData if it is damaged, Unwritable for a full disk."""
    folder = manifest.parent
    try:
        read = checkpoints.read_any(folder)
        if isinstance(read, GroupManifest):
            return GroupState(folder, read_state(manifest).image)
        return SavedRows(read, room)
    except BadData as error:
        raise BadData(f"--checkpoint_dir_for_init: {error}; name another checkpoint") from None
