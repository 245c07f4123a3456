"""Jobs of PyTorch models with parameter servers: each record is in the model once, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit
from tests.job.conftest import EPOCHS, IDS, RECORDS, WIDTH, Start
from tests.job.test_faults import at_step, kill, recovered, training
from tests.job.test_ps import at, master_of, processes

torch = pytest.importorskip("torch", reason="make setup-torch")

ZOO = Path(__file__).parent / "zoo"


def test_a_worker_a_server_and_the_master_are_killed_and_each_record_counts_once(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    job = plain(
        model_zoo=ZOO,
        model_def="counted.custom_model",
        audit=tmp_path / "audit",
        output=tmp_path / "counted.pt",
    )
    at_step(job, 20, lambda status: kill(training(status)[-1]))
    at(job, 30, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    at(job, 40, lambda status: os.kill(master_of(job), signal.SIGKILL))
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] >= 1  # a loaded machine may lose another one
    assert summary["roll_backs"] == 0
    state = torch.load(tmp_path / "counted.pt", weights_only=True)
    expected = np.bincount(ids, minlength=IDS).astype(np.float32) * EPOCHS
    np.testing.assert_array_equal(state["rows.weight"], np.repeat(expected[:, None], WIDTH, 1))
    assert state["total.weight"].item() == RECORDS * EPOCHS
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == report.trained == RECORDS * EPOCHS


def test_steps_count_each_record_once_though_a_worker_and_a_server_are_killed(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    """Each step is the mean of four chunks of one size, so that each record adds a quarter, and no sum is rounded."""
    wave, batch = 4, 10
    job = plain(
        model_zoo=ZOO,
        model_def="counted.custom_model",
        use_async=False,
        grads_to_wait=wave,
        minibatch_size=batch,
        num_minibatches_per_task=2,
        num_epochs=1,
        environment={"GO": str(tmp_path / "go"), "PACE": "0.1"},
        audit=tmp_path / "audit",
        output=tmp_path / "counted.pt",
    )
    at_step(job, 6, lambda status: kill(training(status)[-1]))
    at(job, 14, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    recovered(job, "ps-0-1")
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["steps"] == RECORDS / wave / batch
    assert summary["members"]["lost"] >= 1
    assert summary["roll_backs"] == 0
    state = torch.load(tmp_path / "counted.pt", weights_only=True)
    expected = np.bincount(ids, minlength=IDS).astype(np.float32) / wave
    np.testing.assert_array_equal(state["rows.weight"], np.repeat(expected[:, None], WIDTH, 1))
    assert state["total.weight"].item() == RECORDS / wave
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == report.trained == RECORDS
