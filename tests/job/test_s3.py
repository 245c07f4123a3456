"""Jobs whose data is on a server of s3:// URLs, which is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import JobStatus
from tests.s3server import S3Server, serving

from .conftest import Start
from .test_faults import at_step
from .test_readers import PASSES, ROWS, begin, jsonl, table, waits

__all__ = ["begin"]

URL = "s3://bucket/data"


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket" / "data").mkdir(parents=True)
    jsonl(root / "bucket" / "data" / "1", table(0, 610))
    jsonl(root / "bucket" / "data" / "2", table(610, ROWS))
    with serving(root) as server:
        yield server


@pytest.fixture
def server(of_module: S3Server) -> S3Server:
    of_module.start()
    return of_module


def test_a_server_that_is_killed_and_started_again(begin: Start, tmp_path: Path, server: S3Server) -> None:
    job = begin(
        training_data=f"{URL}/",
        num_workers=2,
        environment={**server.environment, "GO": str(tmp_path / "go")},
    )

    def killed(_: JobStatus) -> bool:
        server.kill()
        return True

    at_step(job, 5, killed)
    (tmp_path / "go").touch()
    assert f"is waiting for {URL}/" in waits(job)
    server.start()
    result = job.wait().succeeded()
    assert result.summary["members"]["lost"] == 0
    assert f"waiting for {URL}/" in result.err
    assert "answers again" in result.err
    assert [epoch.counted for epoch in audit(tmp_path / "audit").epochs] == [ROWS] * PASSES


def test_a_server_that_stays_away(begin: Start, tmp_path: Path, server: S3Server) -> None:
    job = begin(
        training_data=f"{URL}/",
        num_workers=2,
        storage_seconds=2,
        output=tmp_path / "model.npz",
        environment={**server.environment, "GO": str(tmp_path / "go")},
    )

    def killed(_: JobStatus) -> bool:
        server.kill()
        return True

    at_step(job, 5, killed)
    (tmp_path / "go").touch()
    result = job.wait()
    assert result.code == 1, result.err
    assert result.summary["reason"].startswith(f"{URL}/")
    assert " has not answered for " in result.summary["reason"]
    assert f"error: {result.summary['reason']}" in result.err
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("s3://nowhere/data/", {}, "s3://nowhere/data does not exist"),
        (f"{URL}/", {"AWS_ACCESS_KEY_ID": "OTHER"}, f"{URL} can't be read: PermissionError: "),
    ],
    ids=["bucket", "key"],
)
def test_a_bucket_that_is_missing_or_refuses(
    begin: Start, tmp_path: Path, server: S3Server, url: str, key: dict[str, str], message: str
) -> None:
    environment = {**server.environment, **key, "GO": str(tmp_path / "go")}
    result = begin(training_data=url, output=tmp_path / "model.npz", environment=environment).wait()
    assert result.code == 2, result.err
    assert message in result.err
    assert not (tmp_path / "model.npz").exists()
    assert not (tmp_path / "audit").exists() or not list((tmp_path / "audit").iterdir())
