"""The proof for a synchronous job that continued from a checkpoint: what was left is trained exactly once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.view import SNAPSHOT, MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.errors import AuditFailed
from elasticdl.master.core import auditmark
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.events import Contribution

STEP = 5
"""The first epoch had four steps, one for each task; of the second one, task 2 was trained, and the first chunk of task 0."""
BASE = StateId(STEP, 0)
PEER = Peer(MemberId("0" * 32), "worker-0-1", "unix:x")
LEFT = ((1, 0, 1), (1, 1, 0), (1, 1, 1), (1, 3, 0), (1, 3, 1))
"""Epoch, task and chunk of what was left."""


def write(
    directory: Path,
    chunks: tuple[tuple[int, int, int], ...],
    *,
    step: int = STEP,
    base: StateId = BASE,
    complete: bool = True,
) -> None:
    """Write what a job leaves whose steps have a chunk of four records each."""
    auditmark.write_manifest(
        directory,
        [Shard("data", 0, 32)],
        seed=1,
        records_per_task=8,
        minibatch_size=4,
        num_epochs=2,
        has_servers=False,
        again=False,
    )
    auditmark.write_group_beginning(directory, checkpoint="/c", step=step, epoch=1, done=[2], begun=[(0, 1)])
    log = AuditLog(directory, PEER.name, PEER.id, print)
    view = View(ViewId(1), (PEER,), base, Position(1, 1, 1, 1), (0,), (0,), 1, (SNAPSHOT,), False, None, "/c")
    log.base(view)
    for number, (epoch, task, chunk) in enumerate(chunks, base.step + 1):
        log.contributed(ViewId(1), number, epoch, (Contribution(0, task, chunk, 4, 0),))
        log.committed(ViewId(1), number, 4, applied=True)
    log.close()
    last = base.step + len(chunks)
    auditmark.write_finished(directory, view=2, step=last, state_view=1, complete=complete)


def test_what_was_left_is_proven_to_be_trained(tmp_path: Path) -> None:
    write(tmp_path, LEFT)
    report = audit(tmp_path)
    assert report.complete
    assert (report.records, report.steps, report.checkpoint) == (20, STEP + 5, "/c")
    first, second = report.epochs
    assert (first.expected, first.counted, first.before) == (0, 0, 4)
    assert (second.expected, second.counted, second.chunks, second.before) == (20, 20, 5, 1)
    assert (
        "each of the 20 records of 2 epochs that were left at /c was trained exactly once" in report.statement
    )
    assert "epoch 2: 20 of 20 records in 5 chunks, and 1 task done before" in str(report)


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        (LEFT[:-1], "never trained in epoch 2: task 3, chunk 1"),
        (((1, 0, 0), *LEFT), "trained twice in epoch 2: task 0, chunk 0"),
        ((*LEFT, (1, 2, 1)), "trained twice in epoch 2: task 2, chunk 1"),
        (((0, 1, 0), *LEFT), "epoch 1 was trained before, at the checkpoint /c"),
    ],
)
def test_what_is_missing_or_was_trained_before_is_found(
    tmp_path: Path, chunks: tuple[tuple[int, int, int], ...], said: str
) -> None:
    write(tmp_path, chunks)
    with pytest.raises(AuditFailed) as failed:
        audit(tmp_path)
    assert said in str(failed.value)


def test_a_history_that_does_not_begin_at_the_checkpoint_is_found(tmp_path: Path) -> None:
    for number, (base, said) in enumerate(
        (
            (StateId(0, 1), "the history goes back to step 0, and the job continued from step 5"),
            (StateId(STEP - 1, 0), "the history goes back to step 4, and the job continued from step 5"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, LEFT, base=base)
        with pytest.raises(AuditFailed) as failed:
            audit(folder)
        assert said in str(failed.value)


def test_a_job_that_was_stopped_at_once_has_nothing_to_prove(tmp_path: Path) -> None:
    write(tmp_path, (), complete=False)
    auditmark.write_finished(tmp_path, view=2, step=STEP, state_view=0, complete=False)
    assert audit(tmp_path).records == 0
