"""Jobs whose records come from a reader of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.audit import audit

from .conftest import Start
from .test_faults import ZOO, at_step, kill, training

RECORDS, EPOCHS = 600, 2


@pytest.mark.parametrize("servers", [{}, {"num_ps_pods": 2}], ids=["", "servers"])
def test_each_record_of_several_parts_of_one_table_is_trained_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: dict[str, int]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = start(
        model_zoo=ZOO,
        model_def="parts.custom_model",
        training_data="squares",
        num_workers=2,
        minibatch_size=10,
        num_minibatches_per_task=2,
        num_epochs=EPOCHS,
        environment={"GO": str(tmp_path / "go")},
        audit=tmp_path / "audit",
        **servers,
    )
    at_step(job, 1, lambda status: kill(training(status)[-1]))
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["members"]["lost"] == 1
    assert summary["records_trained"] == RECORDS * EPOCHS
    report = audit(tmp_path / "audit")
    epochs = report.epochs
    assert [epoch.complete for epoch in epochs] == [True] * EPOCHS
