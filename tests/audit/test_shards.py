"""Shards of one name: which record is meant is told by name and range, and no record may be in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import AuditFailed
from elasticdl.master.core import auditmark
from tests.audit.histories import chain

MEMBER = "0" * 32


def write(directory: Path, shards: list[Shard], tasks: list[int]) -> None:
    """Write what a job of one worker leaves that took each of these tasks of one chunk, four records, in a step."""
    auditmark.write_manifest(
        directory,
        shards,
        seed=1,
        records_per_task=4,
        minibatch_size=4,
        num_epochs=1,
        has_servers=False,
        again=False,
    )
    lines = [f"elasticdl-audit 1 {MEMBER} worker-0-1", f"base 1 0 1 {MEMBER}"]
    for step, task in enumerate(tasks, 1):
        lines += [f"contributed 1 {step} 0 0 {task} 0 4 0", f"committed 1 {step} 4 1"]
    (directory / f"worker-0-1-{MEMBER}.audit").write_bytes(chain(lines))
    auditmark.write_finished(directory, view=2, step=len(tasks), state_view=1, complete=True)


def test_a_job_on_shards_of_one_name_is_proven(tmp_path: Path) -> None:
    write(tmp_path, [Shard("a", 4, 8), Shard("b", 0, 4), Shard("a", 0, 4)], [3, 0, 2, 1])
    report = audit(tmp_path)
    assert report.statement == "Proven: each of the 16 records of 1 epoch was trained exactly once."


def test_a_missing_record_is_named_by_its_range(tmp_path: Path) -> None:
    write(tmp_path, [Shard("a", 4, 8), Shard("b", 0, 4), Shard("a", 0, 4)], [0, 2, 3])
    with pytest.raises(
        AuditFailed, match=r"never trained in epoch 1: .*\(4 records of records 8 to 11 of a\)"
    ):
        audit(tmp_path)


def test_shards_that_overlap_are_no_proof(tmp_path: Path) -> None:
    """Each chunk is there once, and yet records 4 and 5 were trained twice."""
    write(tmp_path, [Shard("a", 4, 8), Shard("b", 0, 4), Shard("a", 2, 4)], [0, 1, 2, 3])
    with pytest.raises(
        AuditFailed, match="manifest: two shards of a overlap, records 2 to 5 and records 4 to 11"
    ):
        audit(tmp_path)
