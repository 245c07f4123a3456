"""A state that is not this model's changes nothing, whatever of it is another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.worker.contract.allreduce import StepLogs

from . import FULL, adapter_of, commit, made_of, records
from .images import changed_image

torch = pytest.importorskip("torch", reason="make setup-torch")


def dense() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trees: trees["model"].pop("0.weight"), r"0.weight: expected float32 \[8, 4\], received nothing"),
        (lambda trees: trees["model"].update(more=np.zeros(1)), r"more: expected nothing, received float64 \[1\]"),
        (lambda trees: trees["model"].update({"0.bias": np.zeros(8)}), r"0.bias: expected float32 \[8\], received float64 \[8\]"),
        (lambda trees: trees.update(model=[]), "0.weight: expected .*, received nothing"),
        (lambda trees: trees.update(schedule=None), "a learning-rate scheduler was expected|no learning-rate scheduler was expected"),
        (lambda trees: trees.update(optimizer=3), "the optimizer's is missing"),
        (lambda trees: trees["optimizer"].update(param_groups=[3]), "its groups of parameters are none"),
        (lambda trees: trees["optimizer"]["param_groups"].pop(), "its groups of parameters are others"),
        (lambda trees: trees["optimizer"]["state"].update({99: {}}), "it has the parameter 99 of 6"),
        (lambda trees: trees["optimizer"]["state"][0].update(exp_avg=np.zeros(3, np.float32)), r"exp_avg of parameter 0 has the .*3"),
    ],
)  # fmt: skip
def test_another_models_state_changes_nothing(change: Callable[[dict[str, Any]], None], said: str) -> None:
    user = made_of(
        dense,
        lambda parameters: torch.optim.Adam(parameters, 0.01),
        lr_scheduler=lambda one: torch.optim.lr_scheduler.StepLR(one, 2),
    )
    donor, made = adapter_of(user), adapter_of(user)
    commit([donor], [records(FULL)], 1)
    digest, image = made.digest(), donor.image()
    with pytest.raises(TransferFailed, match=f"the state does not fit this model and its optimizer: {said}"):
        made.load(changed_image(change, image))
    assert made.digest() == digest
    made.load(changed_image(lambda trees: None, image))
    assert made.digest() == donor.digest() != digest


def test_what_an_optimizer_keeps_must_be_writable() -> None:
    class Keeping(torch.optim.SGD):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "seen": {1, 2}}

    with pytest.raises(
        BadModel,
        match=r"m.py: the state of the optimizer and its scheduler can't be copied to other workers: it has a builtins.set",
    ):
        adapter_of(made_of(dense, lambda parameters: Keeping(parameters, 0.1)))


def test_what_an_optimizer_keeps_in_bfloat16_comes_over_as_it_is() -> None:
    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = torch.nn.Linear(4, 3, dtype=torch.bfloat16)

        def forward(self, rows: Any) -> Any:
            return self.only(rows.bfloat16()).float()

    user = made_of(Halves)
    made, healed = adapter_of(user), adapter_of(user, seed=8)
    commit([made], [records(FULL)], 1)
    healed.load(made.image())
    assert healed.digest() == made.digest()
    momentum = healed.optimizer.state_dict()["state"][1]["momentum_buffer"]
    assert torch.equal(momentum, made.optimizer.state_dict()["state"][1]["momentum_buffer"])
    assert momentum.dtype == torch.bfloat16


def test_the_state_is_described_once_for_all_parts_of_an_image() -> None:
    described = []

    class Watched(torch.optim.Adam):
        def state_dict(self) -> Any:
            described.append(None)
            return super().state_dict()

    made = adapter_of(
        made_of(
            dense,
            lambda parameters: Watched(parameters, 0.01),
            lr_scheduler=lambda one: (torch.optim.lr_scheduler.StepLR(one, 1), "epoch"),
        )
    )
    images = []
    for step in (1, 2):
        commit([made], [records(FULL, step)], step)
        made.logs(StepLogs(step, 0, 0.5, True, 0.5))
        described.clear()
        meta, size = made.describe_image()
        parts = [made.image_part(first, min(first + 100, size)) for first in range(0, size, 100)]
        assert len(described) == 1
        made.load(StateImage(meta, np.concatenate(parts)))
        assert made.digest() == digest_of(parts)
        images.append((meta, np.concatenate(parts).tobytes()))
    assert images[0][0] != images[1][0], "the rate of the next epoch is in it"
    assert images[0][1] != images[1][1]


def digest_of(parts: list[Any]) -> str:
    return hashlib.blake2b(np.concatenate(parts).tobytes(), digest_size=16).hexdigest()
