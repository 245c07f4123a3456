"""Evaluation and prediction with checkpoints give the same bits as with the exported model, whichever processes are killed."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.errors import BadInput
from elasticdl.job.submit import prepare
from elasticdl.spec import edge
from elasticdl.spec.jobspec import JobKind

from .conftest import ELASTICDL, Job, Start
from .test_faults import seen
from .test_group_checkpoints import flip
from .test_tasks import disturb, sums

ZOO = Path(__file__).parent / "zoo"


@pytest.fixture
def flowers(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> functools.partial[Job]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go"), "TOLD": str(tmp_path / "told")},
        model_zoo=ZOO,
        model_def="foretold.custom_model",
        minibatch_size=4,
        witness_seconds=1,
        num_workers=2,
    )


def exports_the_same(saved: Path, model: str, written: Path) -> str:
    """Export a checkpoint, and compare that with what the job has written; return what the export says besides."""
    later = written.with_name("later.npz")
    command = [ELASTICDL, "export", str(saved), "--output", str(later), "--model_zoo", str(ZOO)]
    made = subprocess.run(
        [*command, "--model_def", model], check=False, timeout=120, text=True, stderr=subprocess.PIPE
    )
    assert made.returncode == 0, made.stderr
    with np.load(later) as one, np.load(written) as other:
        assert sorted(one.files) == sorted(other.files)
        assert all(np.array_equal(one[name], other[name]) for name in one.files)
    return made.stderr


def test_a_groups_checkpoint_gives_what_the_export_gives(
    flowers: functools.partial[Job], iris: Path, tmp_path: Path
) -> None:
    """A damaged one is passed over by name; what can't be used is refused, and nothing is made."""
    go, saved, data = tmp_path / "go", tmp_path / "checkpoints", iris / "train"
    # Each minibatch takes its time, so that there is a checkpoint before the last one.
    kept = {"checkpoint_dir": saved, "checkpoint_steps": 3}
    flowers(training_data=data, max_step=13, output=tmp_path / "petals.npz", **kept).wait().succeeded()
    older, newest = (checkpoints.folder_of(saved, number) for number in checkpoints.numbers(saved)[-2:])

    go.touch()

    def predict(output: str, **settings: object) -> Job:
        made = {"num_minibatches_per_task": 1, "prediction_data": data, "output": tmp_path / output}
        return flowers(command="predict", **{**made, **settings})

    evaluate = functools.partial(flowers, command="evaluate", validation_data=data, num_workers=1)
    exports_the_same(saved, "foretold.custom_model", tmp_path / "petals.npz")
    predict("from-file", trained_model=tmp_path / "petals.npz", num_workers=1).wait().succeeded()
    go.unlink()
    job = predict(
        "from-checkpoint", checkpoint_dir_for_init=saved, num_workers=3, relaunch_on_worker_failure=100
    )
    disturb(job, go, "predicting")
    summary = job.wait().succeeded().summary
    assert summary["weights_of"] == str(newest)
    assert sums(tmp_path / "from-checkpoint") == sums(tmp_path / "from-file")
    of_file = evaluate(trained_model=tmp_path / "petals.npz").wait().succeeded().summary
    of_checkpoint = evaluate(checkpoint_dir_for_init=newest).wait().succeeded().summary
    assert of_checkpoint["metrics"] == of_file["metrics"]

    def nothing_is_made() -> None:
        assert not [path for path in tmp_path.iterdir() if "refused" in path.name]

    def fail(*words: str, **settings: object) -> None:
        result = predict(
            "refused", **{"num_workers": 1, "checkpoint_dir_for_init": newest, **settings}
        ).wait()
        assert result.code == 2, result.err + result.logs
        for word in words:
            assert word in result.err
        nothing_is_made()

    def refuse(*words: str, weights: Path) -> None:
        """Look at what is refused before there is a job."""
        given = {key: value for key, value in flowers.keywords.items() if key != "environment"}
        given |= {"prediction_data": data, "output": tmp_path / "refused", "checkpoint_dir_for_init": weights}
        with pytest.raises(BadInput) as caught:
            prepare(edge.build(edge.from_arguments({"job_name": "test", **given}), JobKind.PREDICT))
        for word in words:
            assert word in str(caught.value)
        nothing_is_made()

    refuse("does not exist", weights=tmp_path / "nowhere")
    fail(f"{newest} is of another model", "weight (1,)", model_def="weighed.custom_model")
    flip(newest / "part-0")
    fail(str(newest / "part-0"), "its checksum does not hold; name another checkpoint")
    job = evaluate(checkpoint_dir_for_init=saved)
    notes = [item.text for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.NOTE]
    summary = job.wait().succeeded().summary
    assert summary["weights_of"] == str(older)
    assert summary["metrics"] != of_file["metrics"]
    assert any(f"{newest / 'part-0'}: the checkpoint is damaged" in note for note in notes)
    (newest / "part-0").unlink()
    refuse(str(newest / "part-0"), "is not whole", weights=newest)
    (newest / NAME).write_text(json.dumps({**json.loads((newest / NAME).read_text()), "format": 2}))
    refuse("written in format 2, this version of elasticdl reads format 1", weights=saved)


def test_a_checkpoint_of_servers_gives_what_the_export_gives(
    plain: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    """Also for ids that nobody has trained, and beside a newer checkpoint that is damaged, which is named."""
    (tmp_path / "go").touch()
    saved, output = tmp_path / "checkpoints", tmp_path / "weighed.npz"
    model = {"model_def": "weighed.custom_model", "threads_per_worker": 1}
    plain(**model, checkpoint_dir=saved, output=output, num_epochs=1, num_workers=1).wait().succeeded()
    number = checkpoints.numbers(saved)[-1]
    folder = checkpoints.folder_of(saved, number)
    (damaged, *_) = checkpoints.read(
        shutil.copytree(folder, checkpoints.folder_of(saved, number + 1))
    ).sizes()
    flip(damaged)
    said = exports_the_same(saved, "weighed.custom_model", output)
    assert f"{damaged}: the checkpoint is damaged" in said
    assert f"{folder} is taken, the one before" in said
    unseen = np.setdiff1d(np.arange(3000), ids)[:40]
    rows = np.concatenate([unseen, ids[:200]])
    (tmp_path / "some.csv").write_text("id\n" + "".join(f"{one}\n" for one in rows))
    task = functools.partial(plain.func, **{**plain.keywords, **model, "num_workers": 1})  # type: ignore[attr-defined]  # the fixture is a partial
    for name in ("training_data", "num_ps_pods", "num_epochs"):
        del task.keywords[name]
    weights = {"file": {"trained_model": output}, "servers": {"checkpoint_dir_for_init": saved}}
    found = {}
    for name, of in weights.items():
        settings = {"prediction_data": tmp_path / "some.csv", "output": tmp_path / name, **of}
        predicted = task(command="predict", **settings).wait().succeeded()
        evaluated = task(command="evaluate", validation_data=tmp_path / "some.csv", **of).wait().succeeded()
        found[name] = (sums(tmp_path / name), evaluated.summary["metrics"])
    assert found["servers"] == found["file"]
    for result in (predicted, evaluated):
        assert f"{damaged}: the checkpoint is damaged" in result.err
        assert result.summary["weights_of"] == str(folder)
    shutil.rmtree(tmp_path / "servers")
    refused = task(
        command="predict",
        prediction_data=tmp_path / "some.csv",
        output=tmp_path / "servers",
        checkpoint_dir_for_init=damaged.parent,
    ).wait()
    assert refused.code == 2, refused.err
    assert str(damaged) in refused.err
    assert "its checksum differs from the manifest's" in refused.err
    assert not (tmp_path / "servers").exists()
