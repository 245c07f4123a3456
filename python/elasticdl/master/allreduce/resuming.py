"""Where a synchronous job continues that is given a checkpoint: which one, what of it holds, and what is refused.

`resume` decides and is pure; `open_checkpoint` finds one and reads all of it. Whether the model is the checkpoint's only a worker knows,
which compares it when it takes the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.choosing import newest_whole
from elasticdl.checkpoint.group import GroupManifest
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.order import Dealing, dealing_of
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadSetting
from elasticdl.master.core.records import ResumedStateRecord
from elasticdl.master.core.resuming import FLAG, highest_number
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class GroupCheckpoint:
    """A checkpoint that was found.

    Attributes:
        path: of the manifest.
        manifest: what it says.
        passed_over: what is said of newer ones that are damaged; empty if there are none.
    """

    path: Path
    manifest: GroupManifest
    passed_over: str = ""


def resume(
    checkpoint: GroupCheckpoint, schedule: Schedule, dealing: Dealing, highest: int
) -> ResumedStateRecord:
    """Return where a job continues.

    Args:
        checkpoint: from which.
        schedule: the order of the job's data.
        dealing: of the job.
        highest: number of a checkpoint in the directory where this job writes its own.

    Raises BadSetting if a position means something else than in the checkpoint, and that matters, or if nothing is left to train.
    """
    manifest, folder = checkpoint.manifest, checkpoint.path.parent
    position, step = manifest.position, manifest.state.step
    differences = list(manifest.dealing.differences(dealing))
    if differences and not manifest.is_between_epochs:
        raise BadSetting(
            f"{FLAG}: {folder} was written in the middle of epoch {position.epoch + 1}, so it can only go on with the same order of the "
            f"same data; different here (there and here): {', '.join(differences)}. Take these as they were, or a checkpoint from the end "
            "of an epoch"
        )
    if manifest.is_between_epochs:
        position = Position(
            position.epoch, 0, 1, 0
        )  # how many tasks the wave has is decided with the first view
    if schedule.ended(position, step):
        limits, then = "--num_epochs and --max_step", f"`elasticdl export {folder}` writes its model"
        if dealing.by_record:
            limits, then = "num_epochs and max_step in the program", "raise them to go on"
        raise BadSetting(
            f"{FLAG}: nothing is left to train: {folder} has {position.epoch} epochs and {step:,} steps, and {limits}, which count from "
            f"the very beginning, say no more than that; {then}"
        )
    if not schedule.has(position):
        raise BadSetting(
            f"{FLAG}: {checkpoint.path} is at {position}, where the data has nothing; name another checkpoint"
        )
    return ResumedStateRecord(highest, str(checkpoint.path), StateId(step, 0), position, manifest.passed)


def check(spec: JobSpec) -> None:
    """Look at all that can be known of a job's checkpoints before anything is launched. Raises BadInput."""
    checkpoint = open_checkpoint(spec, verify=False)
    if checkpoint is not None and not spec.job_command:
        # The data is not open yet; the master compares it, too. What a custom training loop trains on only its program says.
        shards = checkpoint.manifest.dealing.shards
        dealing = dealing_of(spec, shards)
        resume(checkpoint, Schedule(dealing.ledger(), spec.num_epochs, spec.max_step), dealing, 0)
    highest_of(spec, checkpoint)


def highest_of(spec: JobSpec, checkpoint: GroupCheckpoint | None) -> int:
    """Return the highest number of a checkpoint where a job writes its own, or that it continues from. Raises BadSetting."""
    if checkpoint is None:
        return highest_number(spec, None, 0)
    return highest_number(spec, checkpoint.path, checkpoint.manifest.number)


def open_checkpoint(spec: JobSpec, *, verify: bool) -> GroupCheckpoint | None:
    """Find the checkpoint that a job continues from, None if it begins anew; `verify`: read all of it, not only the manifest.

    Of a directory it is the newest that is not damaged. Raises BadInput.
    """
    if not spec.checkpoint_dir_for_init:
        return None
    folder, manifest, passed_over = newest_whole(
        spec.checkpoint_dir_for_init, checkpoints.read_of_group, FLAG, verify=verify
    )
    return GroupCheckpoint(folder / NAME, manifest, passed_over)
