"""The accumulator of PyTorch models as it is on a GPU: apart from the memory of the host in which the ring runs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from elasticdl.errors import BadModel  # noqa: E402
from elasticdl.torch.gradients import Gradients  # noqa: E402

FULL = 4


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    made = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    made.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    return made


def taken(made: torch.nn.Module, *, apart: bool) -> Gradients:
    return Gradients(list(made.parameters()), dict(made.named_buffers()), FULL, "model.py", apart=apart)


def chunk(made: torch.nn.Module, found: Gradients, rows: int, seed: int) -> None:
    found.begin()
    made(torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    found.end(rows)


@pytest.mark.parametrize("alone", [False, True])
def test_what_is_apart_has_the_bits_of_what_is_not(*, alone: bool) -> None:
    """So it is, too, where the sum of a worker that is alone stays on the device; `result` has anything then."""
    results = []
    for apart in (False, True):
        made = model()
        found = taken(made, apart=apart)
        for step in range(3):
            for rows, seed in ((4, 2 * step), (3, 2 * step + 1)):
                chunk(made, found, rows, seed)
            sent = (
                np.array(found.accumulator()) if not (alone and apart) else np.full(found.size, np.nan, "f")
            )
            np.copyto(found.result, sent)
            assert found.take(alone=alone and apart)
            found.give(7.0)
            assert made.unused.grad is None
            with torch.no_grad():
                for one in made.parameters():
                    if one.grad is not None:
                        one -= 0.1 * one.grad
                        one.grad = None
            found.zero()
            assert not np.any(np.array(found.accumulator()))
        results.append([one.detach().numpy() for one in made.state_dict().values()])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    ("values", "finite"),
    [([3e38, 3e38], True), ([1.0, np.inf], False), ([np.inf, -np.inf], False), ([np.nan, 1.0], False)],
)
def test_what_is_taken_is_looked_at(values: list[float], *, finite: bool, alone: bool) -> None:
    """Numbers whose sum is too large are finite; and the accumulator stays as it is."""
    made = torch.nn.Linear(1, 1)
    found = taken(made, apart=True)
    found.begin()
    for one, value in zip(made.parameters(), values, strict=True):
        one.grad = torch.full_like(one, value)
    found.end(FULL)
    before = np.array(found.accumulator())
    np.copyto(found.result, 0 if alone else before)
    assert found.take(alone=alone) is finite
    np.testing.assert_array_equal(np.array(found.accumulator()), before)


def test_the_only_chunk_of_a_step_is_committed_as_the_backward_pass_left_it() -> None:
    """What needs it in the accumulator finds it there: a program that writes to its gradients, a second chunk."""
    made = torch.nn.Linear(2, 1)
    found = taken(made, apart=False)

    def give(weight: float | None, bias: float | None) -> list[torch.Tensor | None]:
        found.begin()
        for one, value in ((made.weight, weight), (made.bias, bias)):
            one.grad = None if value is None else torch.full_like(one, value)
        given = [made.weight.grad, made.bias.grad]
        found.end(FULL)
        return given

    given = give(2.0, None)
    assert found.take(alone=True)
    found.give(FULL)
    assert made.weight.grad is given[0]
    assert made.bias.grad is None
    found.zero()
    given = give(4.0, None)
    found.gather()
    torch._foreach_zero_(given[:1])
    give(None, None)
    give(2.0, 8.0)
    assert found.take(alone=True)
    found.give(2 * FULL)
    np.testing.assert_array_equal(made.weight.grad, [[3.0, 3.0]])
    np.testing.assert_array_equal(made.bias.grad, [4.0])


def test_a_backward_pass_between_chunks_is_not_in_it() -> None:
    made = model()
    found = taken(made, apart=True)
    made(torch.ones(FULL, 5)).sum().backward()
    assert not np.any(np.array(found.accumulator()))


def test_a_sparse_gradient_is_refused() -> None:
    made = torch.nn.Embedding(6, 2, sparse=True)
    found = taken(made, apart=True)
    found.begin()
    made(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(BadModel, match=r"parameter \(6, 2\) is sparse"):
        found.end(FULL)
