"""Where a job continues that is given a checkpoint: what of it holds, and what is refused (R28).

`resume` decides and is pure; `open_checkpoint` finds one, and of several the newest that is not damaged. What only a worker knows, whether
the model is the checkpoint's, is compared there (`elasticdl.catalog.catalog`); what is in the slots' files, servers verify as they read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.choosing import newest_whole
from elasticdl.checkpoint.manifest import NAME, Barrier, Manifest
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.order import Dealing, dealing_of, tasks_of
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.errors import BadSetting
from elasticdl.master.core.done import Done, TaskNumber
from elasticdl.master.core.records import EvaluatedRecord, ResumedRecord
from elasticdl.master.core.resuming import FLAG
from elasticdl.master.core.resuming import highest_number as highest_of
from elasticdl.spec.jobspec import JobSpec


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was found.

    Attributes:
        path: of the manifest.
        manifest: what it says.
        passed_over: what is said of newer ones that are damaged; empty if there are none.
    """

    path: Path
    manifest: Manifest
    passed_over: str = ""


def resume(checkpoint: Checkpoint, order: TaskOrder, dealing: Dealing, highest: int) -> ResumedRecord:
    """Return where a job continues.

    Args:
        checkpoint: from which.
        order: the job's tasks.
        dealing: of the job.
        highest: number of a checkpoint in the directory where this job writes its own.

    Raises BadSetting if its numbers of tasks mean something else than the checkpoint's, and that matters, or if nothing is left to train.
    """
    manifest = checkpoint.manifest
    position = Done(TaskNumber(manifest.low), tuple(map(TaskNumber, manifest.above)))
    renumbered, step = None, manifest.step
    differences = list(manifest.dealing.differences(dealing))
    if differences:
        epochs, begun = divmod(manifest.low, manifest.dealing.ledger().num_tasks)
        if begun or not manifest.is_between_tasks:
            raise BadSetting(
                f"{FLAG}: {checkpoint.path.parent} was written in the middle of epoch {epochs + 1}, so it can only go on with the same "
                f"order of the same data; different here (there and here): {', '.join(differences)}. Take these as they were, or the "
                "checkpoint that a job leaves at its end"
            )
        renumbered = TaskNumber(epochs * order.ledger.num_tasks)
        position = Done(renumbered)
        step = order.steps_before(renumbered) if dealing.grads_to_wait else 0
    is_over = max((position.low - 1, *position.above)) >= order.total or position.low >= order.total
    if is_over or 0 < order.max_step <= step:
        trained = order.ledger.records_before(*divmod(position.low, order.ledger.num_tasks))
        epoch = order.epoch(position.low)
        raise BadSetting(
            f"{FLAG}: nothing is left to train: {checkpoint.path.parent} has {epoch} epochs and {trained:,} records, and --num_epochs and "
            "--max_step, which count from the very beginning, say no more than that; "
            f"`elasticdl export {checkpoint.path.parent}` writes its model"
        )
    return ResumedRecord(
        number=highest,
        path=str(checkpoint.path),
        position=position,
        roll_back=manifest.roll_back + 1,
        renumbered=renumbered,
        model=json.dumps(dict(manifest.model), sort_keys=True, separators=(",", ":")),
        step=step,
        barriers=_barriers(manifest, position, renumbered, order),
    )


def _barriers(
    manifest: Manifest, position: Done, renumbered: TaskNumber | None, order: TaskOrder
) -> tuple[EvaluatedRecord, ...]:
    """Return the barriers that were passed, and the end of the last epoch, of which callbacks hear also if nobody waited there."""
    found = [_passed(one, position, renumbered, order) for one in manifest.barriers]
    epoch, begun = divmod(position.low, order.ledger.num_tasks)
    if epoch and begun and not any(one.epoch_ended and one.epoch == epoch - 1 for one in found):
        task = TaskNumber(position.low - begun)
        state = StateId(order.steps_before(task), ViewId(manifest.roll_back))
        found.append(EvaluatedRecord(state, (), 0.0, task, epoch - 1, epoch_ended=True))
    return tuple(sorted(found, key=lambda one: one.task))


def _passed(one: Barrier, position: Done, renumbered: TaskNumber | None, order: TaskOrder) -> EvaluatedRecord:
    """Return a barrier that was passed in a checkpoint, by its numbers there, or where tasks have other numbers, by its epoch."""
    task = one.task
    if renumbered is not None:
        task = (one.epoch + one.epoch_ended) * order.ledger.num_tasks
    state = StateId(one.step, ViewId(one.roll_back))
    return EvaluatedRecord(
        state, one.values, 0.0, TaskNumber(min(task, position.low)), one.epoch, one.epoch_ended
    )


def check(spec: JobSpec) -> None:
    """Look at all that can be known of a job's checkpoints before anything is launched. Raises BadInput."""
    checkpoint = open_checkpoint(spec, verify=False)
    if checkpoint is not None:
        # The data is not open yet; the master compares it, too.
        shards = checkpoint.manifest.dealing.shards
        resume(checkpoint, tasks_of(spec, shards), dealing_of(spec, shards), 0)
    highest_number(spec, checkpoint)


def open_checkpoint(spec: JobSpec, *, verify: bool) -> Checkpoint | None:
    """Find the checkpoint that a job continues from, None if it begins anew. Raises BadInput.

    Of a directory it is the newest that is not damaged; `verify` as in `newest_whole`.
    """
    if not spec.checkpoint_dir_for_init:
        return None
    folder, manifest, passed_over = newest_whole(
        spec.checkpoint_dir_for_init, checkpoints.read, FLAG, verify=verify
    )
    return Checkpoint(folder / NAME, manifest, passed_over)


def highest_number(spec: JobSpec, checkpoint: Checkpoint | None) -> int:
    """Return the highest number of a checkpoint where a job writes its own, or that it continues from. Raises BadSetting."""
    if checkpoint is None:
        return highest_of(spec, None, 0)
    return highest_of(spec, checkpoint.path, checkpoint.manifest.number)
