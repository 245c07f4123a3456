"""Jobs with parameter servers that evaluate while they train: at barriers, where nothing is trained before the metrics are journalled."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.audit import audit
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus

from .conftest import Job, Result, Start, counting, starting, write_ids
from .test_checkpoints import kill_all, saved
from .test_faults import ZOO, at_step, seen, training
from .test_faults import kill as kill_one
from .test_ps import at, master_of, processes

RECORDS, EPOCHS, HELD_OUT = 2000, 2, 400
BARRIERS = (21, 33, 42, 60, 66)
"""Steps: an epoch has 33, in waves of 3, and an evaluation is at the first wave at or after each 20th, and at the ends of epochs."""


def weighing(counts: Start, ids: np.ndarray, folder: Path) -> Start:
    """Start jobs of which every step depends on those before."""
    (folder / "heldout.csv").write_text("id\n" + "".join(f"{one}\n" for one in ids[:HELD_OUT]))
    return functools.partial(
        counts,
        model_def="weighed.custom_model",
        validation_data=folder / "heldout.csv",
        evaluation_steps=20,
        use_async=False,
        grads_to_wait=4,
        num_minibatches_per_task=3,
        num_workers=3,
        threads_per_worker=1,
        output=folder / "weighed.npz",
        audit=folder / "audit",
    )


@pytest.fixture
def begin(plain: Start, ids: np.ndarray, tmp_path: Path) -> Start:
    """Start such jobs of the test."""
    return weighing(plain, ids, tmp_path)


COOLING = {"model_def": "cooling.custom_model", "num_epochs": EPOCHS + 1}
"""Settings of a job with callbacks, of which one ends it before its last epoch."""

Found = tuple[dict[int, str], dict[str, Any], dict[str, np.ndarray]]
"""What a job evaluated, its last metrics, and what it has made."""


def evaluations(result: Result) -> dict[int, str]:
    """Return what was said of each evaluation, by step; each is said once."""
    found = re.findall(r"evaluation of step (\d+): (.*) \(", result.err)
    assert len({step for step, _ in found}) == len(found), found
    return {int(step): values for step, values in found}


def check(result: Result, tmp_path: Path, *, complete: bool = True) -> Found:
    """Return what a job evaluated, its last metrics, and what it has made."""
    summary = result.succeeded().summary
    assert (summary["steps"], summary["records_trained"]) == (BARRIERS[-1], RECORDS * EPOCHS)
    report = audit(tmp_path / "audit")
    assert report.complete == complete
    assert report.trained == RECORDS * EPOCHS
    made = dict(np.load(tmp_path / "weighed.npz"))
    for path in (tmp_path / "audit").iterdir():
        path.unlink()
    (tmp_path / "weighed.npz").unlink()
    return evaluations(result), summary["metrics"], made


def undisturbed_run(folder: Path, *, complete: bool = True, **settings: object) -> Found:
    """Return what one worker makes of a job when nothing happens to it."""
    (folder / "go").touch()
    with starting(folder) as start:
        begin = weighing(counting(start, folder), write_ids(folder), folder)
        return check(begin(num_workers=1, num_ps_pods=1, **settings).wait(), folder, complete=complete)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a job makes."""
    return undisturbed_run(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a job with callbacks keeps its last checkpoint and its best one."""
    return tmp_path_factory.mktemp("cooled") / "checkpoints"


@pytest.fixture(scope="module")
def cooled(kept: Path) -> Found:
    """What that job makes."""
    best = {"checkpoint_dir": kept, "checkpoint_best": "val_loss:max", "keep_checkpoint_max": 1}
    # None but the best one and the last one, however long the job takes.
    return undisturbed_run(kept.parent, complete=False, **COOLING, **best, checkpoint_steps=999)


def same(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert {name: value.hex() for name, value in one[1].items()} == {
        name: value.hex() for name, value in other[1].items()
    }
    for name, values in one[2].items():
        np.testing.assert_array_equal(values, other[2][name])


def during(job: Job, step: int, act: Callable[[JobStatus], object]) -> None:
    """Act once while a step is evaluated, with some parts done and some not."""
    for item in seen(job):
        if isinstance(item, JobStatus):
            found = re.search(r"step (\d+) is evaluated, (\d+) of", item.reason)
            if found and int(found[1]) == step and int(found[2]):
                act(item)
                return
    pytest.fail(f"the job ended before step {step} was evaluated")


def kill(status: JobStatus, role: str) -> None:
    os.kill(processes(status, role)[0], signal.SIGKILL)


def test_barriers_are_evaluated_and_the_last_metrics_are_those_of_the_model(
    undisturbed: Found, ids: np.ndarray
) -> None:
    found, metrics, made = undisturbed
    assert tuple(found) == BARRIERS
    assert set(metrics) == {"val_loss", "val_accuracy"}
    held_out = ids[:HELD_OUT]
    score = made["embeddings"][held_out] @ made["weights"] + made["bias"][0]
    labels = held_out % 3 == 0
    assert metrics["val_loss"] == pytest.approx((np.logaddexp(0, score) - labels * score).mean(), rel=1e-5)
    assert metrics["val_accuracy"] == pytest.approx((labels == (score > 0)).mean())


def lose_one_of_each(job: Job) -> None:
    """Kill a worker, a server, the master and another worker, each in an evaluation."""
    during(job, 21, lambda status: kill(status, "worker"))
    during(job, 33, lambda status: kill(status, "ps"))
    during(job, 42, lambda status: os.kill(master_of(job), signal.SIGKILL))
    during(job, 60, lambda status: kill(status, "worker"))


def test_losses_during_evaluations_change_no_bit(begin: Start, tmp_path: Path, cooled: Found) -> None:
    """Nor what callbacks do, which pass barriers alike whatever is lost, and end the job at one."""
    job = begin(num_ps_pods=2, **COOLING)
    lose_one_of_each(job)
    (tmp_path / "go").touch()
    result = job.wait()
    found = check(result, tmp_path, complete=False)
    assert result.summary["roll_backs"] == 0
    assert result.summary["members"]["lost"] >= 2
    same(found, cooled)
    assert "Enough asked for the end of training after step 66" in result.err


def test_a_roll_back_during_an_evaluation_evaluates_that_state_once_more_and_rebuilds_what_callbacks_knew(
    begin: Start, tmp_path: Path, cooled: Found
) -> None:
    job = begin(num_ps_pods=2, ps_replicas=1, checkpoint_steps=24, **COOLING)
    during(job, 60, lambda status: kill(status, "ps"))
    (tmp_path / "go").touch()
    result = job.wait()
    found = check(result, tmp_path, complete=False)
    assert result.summary["roll_backs"] == 1
    assert result.summary["redone_steps"] > 0
    same(found, cooled)


def test_the_best_barrier_is_kept_and_a_job_continues_from_it_with_what_callbacks_knew(
    begin: Start, tmp_path: Path, cooled: Found, kept: Path
) -> None:
    begin = functools.partial(begin, **COOLING)
    (tmp_path / "go").touch()
    best, newest = checkpoints.numbers(kept)
    chosen, last = (checkpoints.read(checkpoints.folder_of(kept, one)) for one in (best, newest))
    losses = {one.step: dict(one.values)["val_loss"] for one in last.barriers}
    assert tuple(losses) == BARRIERS
    assert chosen.is_best
    assert chosen.is_between_tasks
    assert [one.step for one in chosen.barriers] == [21]
    assert max(losses, key=lambda step: losses[step]) == 21
    folder = checkpoints.folder_of(kept, best)
    data = kept.parent / "ids.csv"
    result = begin(num_ps_pods=2, checkpoint_dir_for_init=folder, training_data=data).wait().succeeded()
    same((evaluations(result), result.summary["metrics"], dict(np.load(tmp_path / "weighed.npz"))), (
        {step: said for step, said in cooled[0].items() if step > 21}, *cooled[1:],
    ))  # fmt: skip
    assert "Enough asked for the end of training after step 66" in result.err
    wrong = begin(
        num_workers=1,
        num_ps_pods=1,
        audit=tmp_path / "none",
        checkpoint_dir=tmp_path / "others",
        checkpoint_best="accuracy:max",
    ).wait()
    assert wrong.code == 2
    assert "there is no metric 'accuracy'; known: val_loss, val_accuracy" in wrong.err


def test_without_common_steps_all_that_is_before_a_barrier_is_in_its_metrics(
    begin: Start, tmp_path: Path
) -> None:
    """Tasks have 3 chunks, of which each is a step."""
    (tmp_path / "go").touch()
    few = {"num_workers": 2, "num_ps_pods": 1}
    job = begin(use_async=True, grads_to_wait=1, evaluation_steps=50, evaluate_at_epoch_end=False, **few)
    steps = {
        item.step for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.EVALUATED
    }
    result = job.wait().succeeded()
    assert steps <= set(evaluations(result)) == {51, 101, 152, 200, 250}
    assert result.summary["steps"] == 250


def test_a_model_is_evaluated_with_exactly_the_records_before_each_barrier(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    """Each record adds one to the sum of all, whichever worker trains it, and whichever is lost."""
    (tmp_path / "heldout.csv").write_text("id\n" + "5\n" * 200)
    job = plain(
        environment={"GO": str(tmp_path / "go"), "PACE": "0.1"},
        validation_data=tmp_path / "heldout.csv",
        evaluation_steps=40,
        eval_metrics_fn="totals",
        audit=tmp_path / "audit",
    )
    at_step(job, 10, lambda status: kill_one(training(status)[-1]))
    at(job, 50, lambda status: kill(status, "ps"))
    (tmp_path / "go").touch()
    result = job.wait().succeeded()
    totals = {
        step: float(dict(one.split() for one in text.split(", "))["val_total"])
        for step, text in evaluations(result).items()
    }
    # Steps of 16 records. A task has 4, but for one of an epoch, which has 1.
    assert totals == {step: step * 16 for step in totals}
    assert [step // 4 * 4 for step in totals] == [40, 80, 120, 124, 160, 200, 240, 248]
    assert {125, 250} <= totals.keys()
    assert result.summary["metrics"]["val_total"] == 4000
    assert result.summary["metrics"].keys() == {"val_loss", "val_total"}
    assert audit(tmp_path / "audit").complete


def test_a_job_goes_on_from_a_checkpoint_and_evaluates_what_is_beyond(
    begin: Start, tmp_path: Path, undisturbed: Found
) -> None:
    directory = tmp_path / "checkpoints"
    begin = functools.partial(begin, num_workers=2)
    job = begin(num_ps_pods=2, checkpoint_dir=directory, checkpoint_steps=24, audit=tmp_path / "first")
    during(job, 33, lambda status: None)
    folder = saved(directory, job)
    kill_all(job)
    (tmp_path / "go").touch()
    job = begin(num_ps_pods=1, checkpoint_dir_for_init=folder)
    result = job.wait().succeeded()
    assert evaluations(result) == {step: said for step, said in undisturbed[0].items() if step > 24}
    assert result.summary["metrics"] == undisturbed[1]


def test_a_job_that_is_stopped_during_an_evaluation_ends_without_it(begin: Start) -> None:
    job = begin(num_workers=2, num_ps_pods=1)
    during(job, 21, lambda status: job.process.send_signal(signal.SIGINT))
    result = job.wait()
    assert (result.summary["status"], result.summary["steps"]) == ("interrupted", 21), result.err
    assert evaluations(result) == result.summary["metrics"] == {}


def test_a_worker_that_keeps_variables_of_its_own_evaluates_those_of_the_servers(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    held_out = ids[:HELD_OUT]
    (tmp_path / "heldout.csv").write_text("id\n" + "".join(f"{one}\n" for one in held_out))
    job = plain(
        model_def="weighed.custom_model",
        validation_data=tmp_path / "heldout.csv",
        num_ps_pods=1,
        get_model_steps=5,
        output=tmp_path / "weighed.npz",
    )
    metrics, made = job.wait().succeeded().summary["metrics"], np.load(tmp_path / "weighed.npz")
    score = made["embeddings"][held_out] @ made["weights"] + made["bias"][0]
    assert metrics["val_loss"] == pytest.approx(
        (np.logaddexp(0, score) - (held_out % 3 == 0) * score).mean(), rel=1e-5
    )


def test_a_metric_that_raises_ends_the_job_with_its_line(begin: Start, tmp_path: Path) -> None:
    text = (ZOO / "weighed.py").read_text().replace("labels == np.rint", "labels.no_such_thing + np.rint")
    (tmp_path / "weighed.py").write_text(text)
    result = begin(model_zoo=tmp_path, num_workers=1, num_ps_pods=1).wait()
    assert result.code == 2
    assert "no_such_thing" in result.err
    assert "weighed.py" in result.err
