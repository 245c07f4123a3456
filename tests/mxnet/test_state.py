"""A state has all that a later step depends on, is never pickled, and one of another model changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel, TransferFailed
from tests.torch.images import changed_image

from . import FULL, adapter_of, commit, made_of, records
from .test_step import OPTIMIZERS, convolution, dense


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_who_was_healed_goes_on_like_the_donor(name: str) -> None:
    user = made_of(convolution, OPTIMIZERS[name])
    donor, joiner = adapter_of(user), adapter_of(user, seed=8)
    for number in range(1, 6):
        commit([donor], [records(FULL, number)], number)
    joiner.load(donor.image())
    for number in range(6, 12):  # the schedule changes the rate in these
        commit([donor, joiner], [records(FULL, number), records(5, number)], number)
    if name == "scheduled":
        made = joiner._updater.optimizer  # type: ignore[attr-defined]
        assert (made.num_update, made.lr_scheduler.base_lr) == (11, 0.02 / 2**3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trees: trees["model"].pop("dense1_bias"), r"dense1_bias: expected float32 \[3\], received nothing"),
        (lambda trees: trees["model"].update(more=np.zeros(1)), r"more: expected nothing, received float64 \[1\]"),
        (lambda trees: trees["model"].update(dense1_bias=np.zeros(3)), r"dense1_bias: expected float32 \[3\], received float64 \[3\]"),
        (lambda trees: trees.update(inputs=2), "expected 1 inputs, received 2"),
        (lambda trees: trees.update(optimizer=3), "the optimizer's is missing"),
        (lambda trees: trees["optimizer"].update(kind="SGD"), "the optimizer's kind: expected Adam, received SGD"),
        (lambda trees: trees["optimizer"].update(schedule=None), "the optimizer's schedule: expected .*FactorScheduler.*, received None"),
        (lambda trees: trees["optimizer"]["attributes"].pop("lr"), "the optimizer's attributes: expected .*, received"),
        (lambda trees: trees["optimizer"].update(states=3), "what the optimizer keeps for parameters is missing"),
        (lambda trees: trees["optimizer"]["states"].update({99: None}), "it has the parameter 99"),
        (lambda trees: trees["optimizer"]["states"].update({0: None}), "what the optimizer keeps for dense0_bias: expected .*, received"),
    ],
)  # fmt: skip
def test_another_models_state_changes_nothing(change: Callable[[dict[str, Any]], None], said: str) -> None:
    user = made_of(dense, OPTIMIZERS["scheduled"])
    donor, made = adapter_of(user), adapter_of(user)
    commit([donor], [records(FULL)], 1)
    digest, image = made.digest(), donor.image()
    with pytest.raises(TransferFailed, match=f"the state does not fit this model and its optimizer: {said}"):
        made.load(changed_image(change, image))
    assert made.digest() == digest
    made.load(changed_image(lambda trees: None, image))
    assert made.digest() == donor.digest() != digest


def test_what_an_optimizer_keeps_must_be_writable() -> None:
    import mxnet as mx

    class Keeping(mx.optimizer.SGD):
        def __init__(self) -> None:
            super().__init__()
            self.seen = {1, 2}

    with pytest.raises(
        BadModel,
        match=r"m.py: the state of the optimizer and its scheduler can't be copied .*: it has a builtins.set",
    ):
        adapter_of(made_of(dense, Keeping))
