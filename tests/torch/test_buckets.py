"""The accumulator of PyTorch models as it is on a GPU: in buckets, and copied to memory of the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from elasticdl.errors import BadModel  # noqa: E402
from elasticdl.torch import gradients, hostcopy  # noqa: E402
from elasticdl.torch.gradients import Gradients  # noqa: E402

FULL = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bucket have 40 bytes, so that a small model has several and one of its parameters is larger."""
    monkeypatch.setattr(gradients, "BUCKET", 40)
    monkeypatch.setattr(hostcopy, "BUCKET", 40)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    made = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    made.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    return made


def taken(made: torch.nn.Module, *, apart: bool) -> Gradients:
    return Gradients(list(made.parameters()), dict(made.named_buffers()), FULL, "model.py", apart=apart)


def chunk(made: torch.nn.Module, found: Gradients, rows: int, seed: int) -> None:
    found.begin(rows)
    made(torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    found.end()


def test_what_is_copied_in_buckets_has_the_bits_of_what_is_not() -> None:
    results = []
    for apart in (False, True):
        made = model()
        found = taken(made, apart=apart)
        for step in range(3):
            for rows, seed in ((4, 2 * step), (3, 2 * step + 1)):
                chunk(made, found, rows, seed)
            result = np.array(found.accumulator())
            found.give(result, 7.0)
            assert made.unused.grad is None
            with torch.no_grad():
                for one in made.parameters():
                    if one.grad is not None:
                        one -= 0.1 * one.grad
                        one.grad = None
            found.zero()
            assert not np.any(np.array(found.accumulator()))
        results.append((result, *(one.detach().numpy() for one in made.state_dict().values())))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_bucket_is_on_its_way_before_the_backward_pass_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    found = taken(made, apart=True)
    sent: list[object] = []
    monkeypatch.setattr(found._copy, "send", lambda first, end: sent.append((first, end)))
    made[0].weight.register_post_accumulate_grad_hook(lambda _: sent.append("last"))
    chunk(made, found, 4, 1)
    assert 0 < sent.index("last") < len(sent) - 1


def again(made: torch.nn.Module, found: Gradients) -> None:
    """Let a backward pass within the backward pass make gradients of the same parameters once more."""
    x = torch.ones(FULL, 4, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(made[2], x, use_reentrant=True)
    (torch.utils.checkpoint.checkpoint(made[2], torch.cat([y, y], 1), use_reentrant=True)).sum().backward()


def unfrozen(made: torch.nn.Module, found: Gradients) -> None:
    """Train a parameter that was frozen when the accumulator was made."""
    made[0].weight.requires_grad_(True)
    made(torch.ones(FULL, 5)).sum().backward()


@pytest.mark.parametrize("work", [again, unfrozen])
def test_gradients_that_come_late_or_twice_are_in_it(
    work: Callable[[torch.nn.Module, Gradients], None],
) -> None:
    made, plain = model(), model()
    made[0].weight.requires_grad_(work is not unfrozen)
    found = taken(made, apart=True)
    found.begin(FULL)
    work(made, found)
    found.end()
    work(plain, found)
    found.give(np.array(found.accumulator()), FULL)
    for mine, theirs in zip(made.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) is (theirs.grad is None)
        assert mine.grad is None or torch.allclose(mine.grad, theirs.grad)


def test_a_backward_pass_between_chunks_is_not_in_it() -> None:
    made = model()
    found = taken(made, apart=True)
    made(torch.ones(FULL, 5)).sum().backward()
    assert not np.any(np.array(found.accumulator()))


def test_a_sparse_gradient_is_refused() -> None:
    made = torch.nn.Embedding(6, 2, sparse=True)
    found = taken(made, apart=True)
    found.begin(FULL)
    with pytest.raises(BadModel, match=r"parameter \(6, 2\) is sparse"):
        made(torch.tensor([1, 2])).sum().backward()
