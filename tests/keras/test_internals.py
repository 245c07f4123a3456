"""What Keras keeps to itself and this project uses is in one file, and still is what it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.keras import internals

HERE = f"Keras {keras.__version__} has changed it; see elasticdl/keras/internals.py"
PACKAGE = Path(internals.__file__).parent
OF_KERAS_2 = ("keras2.py", "givenvalues.py")
"""What Keras 2, which does not change any more, keeps to itself: the contract's tests run it."""


@pytest.fixture
def model() -> Any:
    inner = keras.Sequential([keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(2)])

    class Penalty(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(keras.ops.sum(inputs))
            return inputs

    return keras.Sequential([keras.Input((3,)), inner, Penalty()])


def test_nothing_else_names_what_keras_keeps_to_itself() -> None:
    private = re.compile(r"keras\.src|(?:model|layer|optimizer)\._[a-z]\w*")
    found = {
        f"{path.name}: {name}"
        for path in PACKAGE.glob("*.py")
        if path.name not in ("internals.py", *OF_KERAS_2)
        for name in private.findall(path.read_text(encoding="utf-8"))
    }
    assert not found, found


def test_all_layers_are_found_inside_others_too(model: Any) -> None:
    kinds = [type(layer).__name__ for layer in internals.layers_of(model)]
    assert kinds.count("Sequential") == 2, HERE
    assert {"Dropout", "Dense", "Penalty"} <= set(kinds), HERE


def test_seeds_of_inner_layers_decide_what_they_draw(model: Any) -> None:
    states = internals.seed_states(model)
    assert len(states) == 2, HERE  # the process's own, and the dropout's
    drawn = []
    for _ in range(2):
        for state in states:
            state.assign([7, 9])
        drawn.append(np.asarray(model(np.ones((4, 3), np.float32), training=True)))
    np.testing.assert_array_equal(drawn[0], drawn[1], HERE)


def test_losses_of_the_last_call_are_forgotten(model: Any) -> None:
    model(np.ones((1, 3), np.float32))
    assert len(model.losses) == 1, HERE
    internals.clear_losses(model)
    assert model.losses == [], HERE


def test_weight_decay_leaves_out_what_was_excluded() -> None:
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    kernel, bias = keras.Variable(np.ones(2), name="kernel"), keras.Variable(np.ones(2), name="bias")
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    decays = internals.decays(optimizer)
    assert (bool(decays(kernel)), bool(decays(bias))) == (True, False), HERE


def test_a_schedule_is_told_from_a_number() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert internals.follows_schedule(keras.optimizers.SGD(schedule)), HERE
    assert not internals.follows_schedule(keras.optimizers.SGD(0.1)), HERE


def test_clipping_is_the_optimizers() -> None:
    optimizer = keras.optimizers.SGD(0.1, clipvalue=0.5)
    (clipped,) = internals.clip(optimizer, [keras.ops.convert_to_tensor([2.0, -0.25])])
    np.testing.assert_array_equal(np.asarray(clipped), np.asarray([0.5, -0.25], np.float32), HERE)
