"""What callbacks write is whole and complete, and the best weights are kept, also if those that have them are killed."""

from __future__ import annotations

import functools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from elasticdl.control.protocol.status import EventKind, JobEvent

from .conftest import Job, Start
from .test_faults import at_step, kill, seen, training

ZOO = Path(__file__).parent / "zoo"
EPOCHS = 3
"""The first one is the best, and two more have a chance."""


class Sums(keras.layers.Dense):
    """What the model file's layer is where nothing is killed."""


def loaded(path: Path) -> keras.Model:
    return keras.models.load_model(path, custom_objects={"Sums": Sums})


def lose_all(job: Job) -> None:
    """Once the killed writer has come back, kill the other one of those that were there in the best epoch."""
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.JOINED and item.worker == "worker-0-2":
            break
    at_step(job, 65, lambda status: any(kill(one) for one in training(status) if one.name == "worker-1-1"))


def test_the_writer_is_killed_while_it_saves_the_best_model_and_then_all_that_held_it(
    start: Start, integers: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member makes up for it, and the killed one comes back, and is the writer again; files are those of an undisturbed job.

    Training ends early, with the best weights, in workers that never held them.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    begin = functools.partial(
        start,
        model_zoo=ZOO,
        model_def="saving.custom_model",
        training_data=tmp_path / "integers.csv",
        minibatch_size=4,
        num_minibatches_per_task=2,
        global_batch_size=16,
        num_epochs=2 * EPOCHS,
        spare_process=True,
    )
    digests = []
    for place in (calm := tmp_path / "calm", rough := tmp_path / "rough"):
        place.mkdir()
        if place == calm:
            (place / "killed").touch()
            (place / "go").touch()
        environment = {"PLACE": str(place), "GO": str(place / "go")}
        job = begin(
            environment=environment,
            num_workers=2 if place == rough else 1,
            output=tmp_path / f"{place.name}.keras",
        )
        if place == rough:
            lose_all(job)
            (place / "go").touch()
        summary = job.wait().succeeded().summary
        assert summary["members"]["lost"] == (2 if place == rough else 0)
        assert summary["steps"] == 64 * EPOCHS
        assert "EarlyStopping asked for the end" in summary["reason"]
        digests.append(summary["digest"])
    assert digests[0] == digests[1]

    names = {"best.keras", "log.csv", "logs", "killed", "go"} | {
        f"{epoch}.weights.h5" for epoch in range(1, EPOCHS + 1)
    }
    once = -0.5 / 16 * (integers[:, 3] @ integers[:, :3])
    for place in (calm, rough):
        np.testing.assert_array_equal(loaded(tmp_path / f"{place.name}.keras").get_weights()[0][:, 0], once)
        assert {path.name for path in place.iterdir()} == names
        assert (place / "log.csv").read_text() == (calm / "log.csv").read_text()
        best = loaded(place / "best.keras")
        np.testing.assert_array_equal(best.get_weights()[0][:, 0], once)
        assert int(best.optimizer.iterations) == 64
        for epoch in range(1, EPOCHS + 1):
            best.load_weights(place / f"{epoch}.weights.h5")
            np.testing.assert_array_equal(best.get_weights()[0][:, 0], epoch * once)
    assert losses(rough / "logs") == losses(calm / "logs")
    assert sorted(losses(calm / "logs")) == list(range(EPOCHS))
    assert len(list((calm / "logs" / "train").iterdir())) == 1
    assert len(list((rough / "logs" / "train").iterdir())) == 3


def losses(logs: Path) -> dict[int, float]:
    """Return the losses of epochs in all event files."""
    found = {}
    for path in (logs / "train").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "epoch_loss":
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return found
