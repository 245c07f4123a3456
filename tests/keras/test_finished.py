"""A state of a group is a trained model: that which the job would have exported, also with averaged weights and best ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.trained import KerasTrained
from elasticdl.spec import framework
from elasticdl.spec.jobspec import JobKind
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.trained import GroupState, Weights
from tests.keras.conftest import records
from tests.keras.test_step import train

Make = Callable[..., KerasAdapter]

NORMALISED = """
def custom_model():
    inputs = keras.Input((3,))
    hidden = keras.layers.BatchNormalization(momentum=0.5)(keras.layers.Dense(4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(hidden)))
"""
AVERAGED = (
    NORMALISED
    + """
def optimizer():
    return keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9)
"""
)
BEST = (
    NORMALISED
    + """
def callbacks():
    return [keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)]
"""
)


def trained_state(made: KerasAdapter) -> StateImage:
    """Train three epochs of two steps, of which the second was the best."""
    for epoch, loss in enumerate((0.5, 0.25, 0.75)):
        train([made], [records(8, 8 * epoch)], steps=2)
        made.gate(GateLogs(2 * epoch + 2, epoch, (("val_loss", loss),), True, loss))
    return made.image()


@pytest.mark.parametrize("source", [NORMALISED, AVERAGED, BEST], ids=["normalised", "averaged", "best"])
def test_it_predicts_and_is_exported_as_the_job_would_have_written_it(
    adapter: Make, model_file: Any, tmp_path: Path, source: str
) -> None:
    made = adapter(source, validation_data="data")
    state = GroupState(tmp_path / "checkpoint-1", trained_state(made))
    made.end_training(0)
    made.export(str(tmp_path / "job.keras"), "keras")
    chunk = records(16)

    def predicted(weights: Weights) -> Any:
        settings = {"kind": JobKind.PREDICT, "prediction_data": "data", "trained_model": "x"}
        trained = KerasTrained(*model_file(source, **settings), None, weights)
        trained.prepare(chunk[:4])
        return trained.predict(trained.convert(chunk), 0, 0)["prediction"]

    wanted = predicted(tmp_path / "job.keras")
    assert np.array_equal(predicted(state), wanted)
    weights_in_training = [weight.numpy() for weight in made.model.trainable_variables]
    written = keras.models.load_model(tmp_path / "job.keras")
    is_replaced = source != NORMALISED
    assert is_replaced != all(
        np.array_equal(one, other.numpy())
        for one, other in zip(weights_in_training, written.trainable_variables, strict=True)
    )
    framework.find("keras").export_state(*model_file(source), state, str(tmp_path / "later.keras"), "keras")
    later = keras.models.load_model(tmp_path / "later.keras")
    assert all(map(np.array_equal, later.get_weights(), written.get_weights()))
    framework.find("keras").export_state(*model_file(source), state, str(tmp_path / "later"), "saved_model")
    assert np.allclose(predicted(tmp_path / "later"), wanted, rtol=0, atol=0)


def test_a_state_of_another_model_is_refused_with_the_first_difference(
    adapter: Make, model_file: Any, tmp_path: Path
) -> None:
    state = GroupState(tmp_path / "checkpoint-1", adapter(NORMALISED).image())
    with pytest.raises(
        BadModel,
        match=r"checkpoint-1: the checkpoint is of another model .* expected dense/kernel float32 \[3, 1\], received dense/kernel "
        r"float32 \[3, 4\]; give the --model_def",
    ):
        framework.find("keras").export_state(*model_file(), state, str(tmp_path / "no.keras"), "keras")
    with pytest.raises(BadModel, match=r"expected adam/iteration int64 .*, received sgd/iteration int64"):
        framework.find("keras").export_state(
            *model_file(AVERAGED), state, str(tmp_path / "no.keras"), "keras"
        )
    assert not list(tmp_path.glob("no*"))
