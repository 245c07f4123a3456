"""The proof for a job that continued from a checkpoint: what was left is trained exactly once, on top of what slots had."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.audit.stamps import _hash
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import AuditFailed
from elasticdl.master.core import auditmark
from elasticdl.worker.auditlog import PsAuditLog

SLOTS, TASKS, EPOCHS = 4, 5, 2
"""Each task has two chunks of four records, the last one of an epoch a single one."""
LOW, ABOVE = 6, (8,)
"""One epoch, and two tasks of the second."""


def sums(chunks: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """What slots say that have applied chunks, each in all slots."""
    pairs = [_hash(number, chunk) for number, chunk in chunks]
    total = sum(high << 64 | low for low, high in pairs) % (1 << 128)
    return [(slot, len(chunks), f"{total:032x}") for slot in range(SLOTS)]


def chunks_of(*numbers: int) -> list[tuple[int, int]]:
    return [(number, chunk) for number in numbers for chunk in range(1 if number % TASKS == 4 else 2)]


def write(
    directory: Path, lines: list[tuple[int, int]], applied: list[tuple[int, int]], *, complete: bool = True
) -> None:
    """Write what a job leaves: its lines, and slots that have applied these chunks beyond the checkpoint's."""
    before = chunks_of(*range(LOW), *ABOVE)
    auditmark.write_manifest(
        directory,
        [Shard("data", 0, 36)],
        seed=1,
        records_per_task=8,
        minibatch_size=4,
        num_epochs=EPOCHS,
        has_servers=True,
        again=False,
    )
    begun = [(7, 1)]
    auditmark.write_beginning(
        directory, low=LOW, above=ABOVE, slots=sums(before), checkpoint="/c", begun=begun
    )
    log = PsAuditLog(directory, "worker-0-1", MemberId("0" * 32), print)
    for number, chunk in lines:
        epoch, task = divmod(number, TASKS)
        log.chunk(number, chunk, epoch, task, 4, 0, range(SLOTS))
    log.close()
    auditmark.write_accounts(directory, sums(before + applied))
    auditmark.write_finished(directory, view=0, step=1, state_view=1, complete=complete)


LEFT = chunks_of(6, 7, 9)


def test_what_was_left_is_proven(tmp_path: Path) -> None:
    write(tmp_path, LEFT, LEFT)
    report = audit(tmp_path)
    assert report.complete
    assert report.records == report.trained == 20
    assert [(one.expected, one.counted, one.before) for one in report.epochs] == [(0, 0, 5), (20, 20, 2)]
    assert all(epoch.complete for epoch in report.epochs)
    assert report.held_records == 4  # the first chunk of task 7 was in the checkpoint
    assert "4 of these records were in the checkpoint already" in str(report)
    assert "20 records of 2 epochs that were left at /c was trained exactly once" in report.statement


def test_a_stopped_job_is_proven_by_minibatches(tmp_path: Path) -> None:
    write(tmp_path, LEFT[:3], LEFT[:3], complete=False)
    assert audit(tmp_path).statement.startswith(
        "Proven for the 3 minibatches so far: 12 records were trained, each once in its epoch"
    )


@pytest.mark.parametrize(
    ("lines", "applied", "why"),
    [
        (LEFT, [*LEFT, LEFT[0]], "has applied 6 pushes"),
        (LEFT, LEFT[1:], "has applied 4 pushes"),
        (LEFT[1:], LEFT[1:], "never trained in epoch 2"),
        (chunks_of(7), chunks_of(7), "4 tasks of epoch 2 were not trained, and 2 were done"),
        ([*LEFT, (8, 0)], LEFT, "task 8 was done before"),
        ([*LEFT, (2, 0)], LEFT, "task 2 was done before"),
    ],
)
def test_what_is_missing_or_too_much_shows(
    tmp_path: Path, lines: list[tuple[int, int]], applied: list[tuple[int, int]], why: str
) -> None:
    write(tmp_path, lines, applied)
    with pytest.raises(AuditFailed, match=why):
        audit(tmp_path)


def test_a_beginning_that_was_edited_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LEFT, LEFT)
    path = tmp_path / "beginning"
    path.write_text(path.read_text().replace('"low": 6', '"low": 5'))
    with pytest.raises(AuditFailed, match="its checksum does not hold"):
        audit(tmp_path)
