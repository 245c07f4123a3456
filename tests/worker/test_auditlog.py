"""What members write is what the auditor reads."""

import json
import zlib
from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import AuditFailed
from elasticdl.worker.auditlog import AuditLog
from elasticdl.worker.events import Contribution

A, B = MemberId("a" * 32), MemberId("b" * 32)


def write_json(path: Path, body: dict[str, object]) -> None:
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**body, "checksum": f"{zlib.crc32(text):08x}"}))


def job(directory: Path, drop: str = "") -> None:
    """Two members train 8 records in 2 steps of one view; lines that begin with `drop` are left out."""
    write_json(
        directory / "manifest",
        {
            "format": 1,
            "shards": [["s", 0, 8]],
            "seed": 0,
            "records_per_task": 4,
            "minibatch_size": 2,
            "num_epochs": 1,
        },
    )
    peers = (Peer(A, "worker-0-1", "unix:/a"), Peer(B, "worker-1-1", "unix:/b"))
    view = View(ViewId(1), peers, StateId(0, 1), Position(0, 0, 2, 0), (0, 1), (0, 1), 2, ("initial", A))
    logs = [AuditLog(directory, name, one, print) for name, one in (("worker-0-1", A), ("worker-1-1", B))]
    for log in logs:
        log.base(view)
    for step in (1, 2):
        for lane, log in enumerate(logs):
            if drop != f"contributed {step} {lane}":
                log.contributed(1, step, 0, [Contribution(lane, task=lane, chunk=step - 1, records=2)])
        for log in logs:
            log.committed(1, step, 4)
    for log in logs:
        log.close()
    write_json(directory / "finished", {"format": 1, "view": 2, "step": 2, "state_view": 1, "complete": True})


def test_a_whole_job_is_proven(tmp_path: Path) -> None:
    job(tmp_path)
    report = audit(tmp_path)
    assert [(epoch.expected, epoch.counted) for epoch in report.epochs] == [(8, 8)]


@pytest.mark.parametrize("drop", ["contributed 1 0", "contributed 2 1"])
def test_a_contribution_that_was_not_written_is_missed(tmp_path: Path, drop: str) -> None:
    job(tmp_path, drop)
    with pytest.raises(AuditFailed):
        audit(tmp_path)


def test_an_existing_file_is_not_continued(tmp_path: Path) -> None:
    AuditLog(tmp_path, "worker-0-1", A, print).close()
    with pytest.raises(FileExistsError):
        AuditLog(tmp_path, "worker-0-1", A, print)
