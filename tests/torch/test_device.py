"""Tensors on their way to a GPU, as far as the CPU can tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="make setup-torch")

from elasticdl.torch.device import separate  # noqa: E402


@pytest.mark.parametrize(
    "view",
    [
        lambda rows: rows[:, :1].expand(-1, 5),
        lambda rows: rows.broadcast_to(2, 6, 4),
    ],
)
def test_what_expand_repeats_gets_its_own_memory(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """PyTorch refuses to copy it to pinned memory, as it refuses to write to such a tensor."""
    shared = view(torch.arange(24.0).reshape(6, 4))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.empty_strided(shared.shape, shared.stride()).copy_(shared)
    own = separate(shared)
    assert torch.equal(own, shared)
    torch.empty_strided(own.shape, own.stride()).copy_(own)


@pytest.mark.parametrize(
    "view",
    [
        lambda rows: rows,
        lambda rows: rows.T,
        lambda rows: rows[::2, 1:3],
        lambda rows: rows[:1].expand(1, 4),
        lambda rows: rows[0].unfold(0, 3, 1),
        lambda rows: rows[:0],
        lambda rows: rows[0, 0],
        lambda rows: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda rows: rows.to_sparse(),
    ],
)
def test_others_stay_what_they_are(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """So a layout that a model wants, like channels_last, is kept."""
    given = view(torch.arange(24.0).reshape(6, 4))
    assert separate(given) is given
