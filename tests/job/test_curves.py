"""With a fixed global batch, faults do not change what is learned."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from elasticdl.audit import audit

from .conftest import Job, Start
from .test_faults import at_step, kill, training

ZOO = Path(__file__).parent / "zoo"
STEPS = 100
EPOCHS = 4


def disturb(job: Job, go: Path) -> None:
    """Kill a worker, drain one, and kill the first of the group as soon as it is two again; then let the job run."""
    at_step(job, 5, lambda status: kill(training(status)[-1]))
    at_step(job, 10, lambda status: kill(training(status)[-1], signal.SIGTERM))
    at_step(job, 15, lambda status: kill(training(status)[0]))
    go.touch()


@pytest.mark.usefixtures("integers")
def test_integer_sums_give_bit_equal_weights(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear model, integers in [-8, 8], plain SGD: every sum is exact, so the final bits must be those of one worker."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    digests = []
    for disturbed in (False, True):
        go = tmp_path / f"go-{disturbed}"
        if not disturbed:
            go.touch()
        job = start(
            model_zoo=ZOO,
            model_def="integers.custom_model",
            training_data=tmp_path / "integers.csv",
            num_workers=3 if disturbed else 1,
            minibatch_size=4,
            num_minibatches_per_task=2,
            global_batch_size=16,
            num_epochs=EPOCHS,
            environment={"GO": str(go)},
            audit=tmp_path / f"audit-{disturbed}",
        )
        if disturbed:
            disturb(job, go)
        summary = job.wait().succeeded().summary
        assert summary["members"]["lost"] == (2 if disturbed else 0)
        assert summary["steps"] == EPOCHS * 1024 // 16
        assert all(epoch.complete for epoch in audit(tmp_path / f"audit-{disturbed}").epochs)
        digests.append(summary["digest"])
    assert digests[0] == digests[1]


def test_a_disturbed_network_has_the_same_curve(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    curves = []
    for disturbed in (False, True):
        go = tmp_path / f"go-{disturbed}"
        if not disturbed:
            go.touch()
        path = tmp_path / f"curve-{disturbed}"
        job = start(
            environment={"CURVE": str(path), "GO": str(go)},
            model_zoo=ZOO,
            model_def="curve.custom_model",
            training_data=iris / "train",
            num_workers=3 if disturbed else 1,
            minibatch_size=4,
            num_minibatches_per_task=2,
            global_batch_size=16,
            num_epochs=20,
            max_step=STEPS,
        )
        if disturbed:
            disturb(job, go)
        job.wait().succeeded()
        curves.append(read(path))
    calm, rough = curves
    assert len(calm) == STEPS
    assert calm.keys() == rough.keys()
    worst = max(abs(rough[step] - loss) / loss for step, loss in calm.items())
    # Sums in another order were seen to differ by 2e-6; a chunk lost or trained twice differs by per cents.
    assert worst < 1e-4, f"the curves differ by {worst:.2g}"


def read(path: Path) -> dict[int, float]:
    """Loss by step; every member writes the same, and what is redone is written again."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {int(step): float(loss) for step, loss in rows}
