"""NaN and infinity are found in every tensor, and a large gradient of a worker that is alone is looked at once, when it is made."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402
from elasticdl.errors import BadModel  # noqa: E402
from elasticdl.torch import finite  # noqa: E402
from elasticdl.torch.changes import GradientChanges  # noqa: E402
from elasticdl.torch.gradients import Gradients  # noqa: E402

from .loops import data, job  # noqa: E402

SIDE = 600
"""A matrix of this side is large enough for the core."""


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_one_number_of_one_tensor_is_found(kind: Any, wrong: float) -> None:
    large = torch.full((SIDE, SIDE), -torch.finfo(kind).max, dtype=kind)
    negative = torch.imag(torch.complex(torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)).conj())
    tensors = [large, large.T, large[:, ::2], torch.ones(3, dtype=kind), torch.ones(0, dtype=kind), negative]
    assert finite.is_for_core(large) is (kind is not torch.bfloat16)
    assert not any(map(finite.is_for_core, tensors[1:]))
    assert finite.are_finite(tensors)
    for changed, place in ((large, (SIDE - 1, SIDE - 2)), (tensors[3], (1,))):
        before = changed[place].clone()
        changed[place] = wrong
        assert not finite.are_finite(tensors)
        changed[place] = before
    assert finite.are_finite(tensors)


def backward(model: Any, scale: float = 1.0) -> Any:
    model.weight.grad = model.bias.grad = None
    (model(torch.ones(4, SIDE)).mean() * scale).backward()
    return model.weight.grad


def test_what_is_known_of_a_gradient_is_of_that_one_and_only_where_it_is_committed_as_it_is() -> None:
    model = torch.nn.Linear(SIDE, SIDE)
    changes = GradientChanges(model.parameters())
    backward(model)
    assert not changes.finite(), "nobody looks before it is known that a worker is alone"
    changes.looks = True
    gradient = backward(model)
    assert changes.finite() == {id(gradient)}, "small ones are left to their norms"
    backward(model, float("inf"))
    assert not changes.finite()

    gradients = Gradients(list(model.parameters()), {}, 4, "program.py")
    for rows, alone, kept in ((4, True, True), (3, True, False), (4, False, False)):
        gradients.zero()
        gradients.begin()
        gradient = backward(model)
        known = changes.finite()
        gradient.view(-1)[7] = float("nan")  # as nobody does: who looks again finds it
        gradients.end(rows, known)
        if not alone:
            gradients.result[:] = gradients.accumulator()
        assert gradients.take(alone=alone) is kept
        assert gradients.as_left is kept


def test_a_step_that_is_not_finite_fails_though_those_before_it_were_looked_at() -> None:
    with job() as made:
        loader, model = edl.DataLoader(data(64), batch_size=8), torch.nn.Linear(4, 100_000)
        model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1))
        batches = iter(loader)
        for step in range(4):
            features, _ = next(batches)
            optimizer.zero_grad()
            loss = model(features).square().mean()
            (loss * float("inf") if step == 3 else loss).backward()
            assert made.passes._changes.looks is (step > 0)
            if step < 3:
                optimizer.step()
        with pytest.raises(BadModel, match=re.escape("the gradient of step 4 is not finite")):
            optimizer.step()
        assert made.step == 3
