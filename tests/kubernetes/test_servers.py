"""Parameter servers in pods: they are deleted, and nodes are lost with them, and every record is in the model exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.audit import audit

from .conftest import Start
from .jobs import ROOT, SECONDS, Job
from .processes import wait_for
from .test_losses import lost, of
from .testbed import Testbed

RECORDS, EPOCHS, IDS, WIDTH = 2000, 12, 3000, 2


def begin(start: Start, folder: Path) -> tuple[Job, np.ndarray]:
    """Start a job whose result is known, and which lasts for minutes until it is let go."""
    drawn = np.random.default_rng(3).zipf(1.3, RECORDS) % IDS
    (folder / "data").mkdir()
    (folder / "data" / "ids.csv").write_text("id\n" + "".join(f"{one}\n" for one in drawn))
    job = start(
        model_zoo=ROOT / "tests/job/zoo",
        model_def="tallied.custom_model",
        training_data="/data/ids.csv",
        num_workers=2,
        num_ps_pods=2,
        num_epochs=EPOCHS,
        minibatch_size=16,
        num_minibatches_per_task=4,
        ps_resource_request="cpu=50m,memory=200Mi",
        envs="GO=/data/go,PACE=1.0",
        output="/data/tallied.npz",
    )
    return job, drawn


def serving(status: dict[str, Any]) -> list[str]:
    """Return the servers that hold a part of the model, if all of it has its second copy."""
    if status.get("state") != "training" or "no second copy" in status["reason"]:
        return []
    return [one["name"] for one in status["workers"] if one["state"] == "serving"]


def whole(job: Job, without: str = "") -> list[str]:
    """Wait until two servers have all of the model, none of them this one, and two workers have gone on; return the servers' pods."""

    def reached() -> bool:
        assert job.process.poll() is None, job.output.read_text()
        found[:] = [f"{job.name}-{name}" for name in serving(job.status())]
        return len(found) == 2 and without not in found

    found: list[str] = []
    wait_for(f"two servers without {without or 'any loss'}", reached, SECONDS)
    job.past(job.status().get("step", 0) + 5, workers=2)
    return found


def apart(job: Job, servers: list[str]) -> None:
    """Check that no two servers are on one node, as there is room on each."""
    assert len({job.node_of(pod) for pod in servers}) == len(servers)


@pytest.mark.timeout(1800)
def test_servers_and_a_node_go_away(start: Start, ready: Testbed, tmp_path: Path) -> None:
    job, drawn = begin(start, tmp_path)
    servers = whole(job)
    apart(job, servers)
    job.lose(servers[0])
    servers = whole(job, without=servers[0])
    apart(job, servers)
    of(ready, job.node_of(servers[1])).kill_container(job.api.get("Pod", servers[1]))
    servers = whole(job, without=servers[1])
    apart(job, servers)
    away = servers[0]  # the others are later lives: what it holds was copied to it while the job trained
    with lost(ready, of(ready, job.node_of(away))):
        servers = whole(job, without=away)
    whole(job)
    job.go()
    summary = job.summary()
    assert summary["roll_backs"] == 0
    assert summary["servers"]["joined"] >= 5
    assert summary["records_trained"] == RECORDS * EPOCHS
    report = audit(job.data / f"{job.name}.audit")
    assert report.complete
    assert report.records == report.trained == RECORDS * EPOCHS
    made = np.load(job.data / "tallied.npz")
    expected = np.bincount(drawn, minlength=IDS).astype(np.float32) * EPOCHS
    np.testing.assert_array_equal(made["rows"], np.repeat(expected[:, None], WIDTH, 1))
