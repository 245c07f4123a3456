"""Synchronous accumulation: steps of several minibatches, the same to the last bit, which workers ever compute them and are killed."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.audit import audit
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.cluster.local.place import find
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import Waves

from .conftest import IDS, WIDTH, Job, Start, counting, starting, write_ids
from .test_checkpoints import kill_all, saved, weights
from .test_faults import ZOO, at_step, kill, recovered, training
from .test_ps import at, holding, master_of, processes

RECORDS, EPOCHS, TASK, MINIBATCH, WAVE = 2000, 2, 48, 16, 4
STEPS = 2 * 33  # of an epoch's 42 tasks, 10 waves of 4 and one of 2, of 3 steps each


SETTINGS: dict[str, object] = {
    "use_async": False,
    "grads_to_wait": WAVE,
    "minibatch_size": MINIBATCH,
    "num_minibatches_per_task": TASK // MINIBATCH,
    "threads_per_worker": 1,
}
"""Of jobs of which every step depends on those before."""


def drawing(counts: Start, folder: Path) -> Start:
    """Start such jobs in a folder, of chunks of a tenth of a second."""
    return functools.partial(
        counts,
        **SETTINGS,
        model_def="tallied.drawn",
        optimizer="adam",
        environment={"GO": str(folder / "go"), "PACE": "0.1"},
        output=folder / "tallied.npz",
        audit=folder / "audit",
    )


@pytest.fixture
def begin(plain: Start, tmp_path: Path) -> Start:
    """Start such jobs of the test."""
    return drawing(plain, tmp_path)


def order() -> TaskOrder:
    ledger = Ledger((Shard("ids.csv", 0, RECORDS),), TASK, MINIBATCH, 0, True)
    return TaskOrder(ledger, EPOCHS, 0, WAVE)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model file be used in this process."""
    monkeypatch.setenv("GO", str(tmp_path / "go"))


def records_of_steps() -> dict[int, list[int]]:
    """Return the places of each step's records."""
    tasks = order()
    waves = Waves(tasks)
    records: dict[int, list[int]] = {}
    for number in range(tasks.total):
        for chunk in range(tasks.chunks(number)):
            chosen = tasks.ledger.chunk(tasks.task(number), chunk).tolist()
            records.setdefault(waves.step(number, chunk), []).extend(chosen)
    assert sorted(records) == list(range(STEPS))
    return records


def by_hand(ids: np.ndarray, steps: int) -> list[np.ndarray]:
    """Return rows and sum after so many steps of `tallied.drawn` with `tallied.gentle`."""
    rows, total = np.zeros((IDS, WIDTH), np.float32), np.zeros(1, np.float32)
    records = records_of_steps()
    for step in range(steps):
        chosen = ids[records[step]]
        slope = np.zeros_like(rows)
        np.add.at(slope, chosen, (rows[chosen] - 3) / np.float32(len(chosen)))
        rows -= np.float32(0.1) * slope
        total -= np.float32(0.1) * (total - 3)
    return [rows, total]


def by_keras(ids: np.ndarray) -> list[np.ndarray]:
    """Return what Keras makes of the same steps, each with all of its records in one batch."""
    found = importlib.util.spec_from_file_location("counted", ZOO / "counted.py")
    assert found is not None
    assert found.loader is not None
    zoo: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(zoo)
    records = records_of_steps()
    model, optimizer = zoo.custom_model(), zoo.adagrad()
    optimizer.build(model.trainable_variables)
    for step in range(STEPS):
        chosen = ids[records[step]][:, None]
        inputs = {"ids": tf.constant(chosen), "ones": tf.ones(chosen.shape)}
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True) - 3.0))
        variables = [one.value for one in model.trainable_variables]
        # Each row's gradient is summed up first, as servers do it.
        gradients = [tf.convert_to_tensor(one) for one in tape.gradient(loss, variables)]
        optimizer.apply(gradients, model.trainable_variables)
    return [*model.get_layer("rows").get_weights(), *model.get_layer("total").get_weights()]


def check(job: Job, tmp_path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Let a job train to its end; return its summary and what it has made."""
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert (summary["steps"], summary["records_trained"]) == (STEPS, RECORDS * EPOCHS)
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == report.trained == RECORDS * EPOCHS
    (output,) = (path for path in map(tmp_path.joinpath, ("tallied.npz", "counted.keras")) if path.exists())
    made = weights(output)
    output.unlink()
    (tmp_path / "go").unlink()
    for line in (tmp_path / "audit").iterdir():
        line.unlink()
    return summary, made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the job makes when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_ids(folder)
    with starting(folder) as start:
        return check(drawing(counting(start, folder), folder)(num_workers=1, num_ps_pods=1), folder)[1]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.usefixtures("go")
def test_steps_are_those_of_keras_although_several_workers_compute_them(
    plain: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    expected = by_keras(ids)
    (tmp_path / "go").touch()
    job = plain(
        **SETTINGS,
        model_def="counted.custom_model",
        loss="squared",
        optimizer="adagrad",
        output=tmp_path / "counted.keras",
        audit=tmp_path / "audit",
    )
    _, made = check(job, tmp_path)
    for mine, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_losses_change_no_bit(begin: Start, tmp_path: Path, undisturbed: list[np.ndarray]) -> None:
    """Nor do servers that come and go before."""
    job = begin(environment={"GO": str(tmp_path / "go"), "PACE": "0.3"})

    def scale(servers: int) -> None:
        place = find("test")
        with JobClient(place.control_address, place.token()) as client:
            client.scale(None, servers)

    at(job, 3, lambda status: scale(3))
    holding(job, {"ps-0-1", "ps-1-1", "ps-2-1"})
    at(job, 5, lambda status: scale(2))
    holding(job, {"ps-0-1", "ps-1-1"})
    at_step(job, 6, lambda status: kill(training(status)[-1]))
    at(job, 14, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    # A master that is lost before it has told of a recovery tells of none.
    recovered(job, "ps-0-1")
    at(job, 22, lambda status: os.kill(master_of(job), signal.SIGKILL))
    summary, made = check(job, tmp_path)
    assert summary["roll_backs"] == 0
    assert summary["members"]["lost"] == 1
    assert [one["member"] for one in summary["recoveries"] if one["member"].startswith("ps")] == ["ps-0-1"]
    same(made, undisturbed)


def test_neither_do_they_if_gradients_and_rows_are_short(begin: Start, tmp_path: Path) -> None:
    """Whoever computes a chunk rounds alike, and what servers keep for a step stays as it came."""
    short = {"gradient_dtype": "bfloat16", "row_dtype": "bfloat16"}
    _, alone = check(begin(num_workers=1, num_ps_pods=1, **short), tmp_path)
    job = begin(**short)
    at_step(job, 6, lambda status: kill(training(status)[-1]))
    at(job, 14, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    summary, made = check(job, tmp_path)
    assert summary["roll_backs"] == 0
    assert summary["members"]["lost"] == 1
    same(made, alone)


def test_roll_backs_and_another_master_change_no_bit(
    begin: Start, tmp_path: Path, undisturbed: list[np.ndarray]
) -> None:
    job = begin(ps_replicas=1, checkpoint_steps=9)
    at(job, 20, lambda status: os.kill(master_of(job), signal.SIGKILL))
    at(job, 30, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    summary, made = check(job, tmp_path)
    assert summary["roll_backs"] == 1
    assert 0 < summary["redone_steps"] <= STEPS
    same(made, undisturbed)


def test_a_checkpoint_is_of_a_step_and_the_job_goes_on_from_it_with_any_number_of_servers(
    begin: Start, tmp_path: Path, undisturbed: list[np.ndarray]
) -> None:
    directory = tmp_path / "checkpoints"
    job = begin(checkpoint_dir=directory, checkpoint_steps=12, keep_checkpoint_max=0)
    folder = saved(directory, job)
    kill_all(job)
    manifest = checkpoints.read(folder)
    assert manifest.above == ()
    assert 0 < manifest.low < order().total
    assert order().wave_of(manifest.low).start == manifest.low
    for servers in (1, 3):
        (tmp_path / "go").touch()
        records, output = tmp_path / f"audit-{servers}", tmp_path / f"{servers}.npz"
        few = {"num_workers": 1, "num_ps_pods": servers}
        job = begin(checkpoint_dir_for_init=folder, output=output, audit=records, **few)
        summary = job.wait().succeeded().summary
        assert (summary["steps"], summary["roll_backs"]) == (STEPS, 0)
        assert audit(records).complete
        same(weights(output), undisturbed)


def test_a_stopped_job_s_model_is_that_of_its_last_whole_step(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    job = begin(optimizer="gentle")

    def stop(status: JobStatus) -> None:
        # What this one has told the master it may not have told every server.
        kill(training(status)[-1])
        job.process.send_signal(signal.SIGINT)

    at(job, 10, stop)
    result = job.wait()
    steps = result.summary["steps"]
    assert 10 <= steps < STEPS, (result.err, result.logs)
    expected = by_hand(ids, steps)
    for mine, theirs in zip(weights(tmp_path / "tallied.npz"), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_steps_may_be_others_within_the_tolerance(
    begin: Start, tmp_path: Path, undisturbed: list[np.ndarray]
) -> None:
    job = begin(sync_version_tolerance=1)
    at_step(job, 6, lambda status: kill(training(status)[-1]))
    summary, made = check(job, tmp_path)
    assert summary["members"]["lost"] == 1
    # Nearly the same path, and not the same one.
    assert any((mine != theirs).any() for mine, theirs in zip(made, undisturbed, strict=True))
    assert max(abs(mine - theirs).max() for mine, theirs in zip(made, undisturbed, strict=True)) < 0.2
