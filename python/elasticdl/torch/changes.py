"""What is known of gradients since the backward pass left them: whether a program has changed them, and whether they are finite.

A gradient here is that of one batch, while a step may have several in several workers, so a change that is not linear would be wrong, as
clipping is. To look whether a large one is finite takes half of the time while it is still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from elasticdl.torch.finite import LARGE, is_finite_by_core, is_for_core


class GradientChanges:
    """Remembers each gradient as the backward pass left it.

    Attributes:
        since_mark: gradients were computed since `mark`.
        looks: large gradients are looked at, because each will be committed as it is.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watch parameters; those that are frozen now are not watched."""
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """Of each parameter it, its gradient, and the version of that."""
        self._finite: dict[int, int] = {}
        """The `id` of the gradient of each parameter of which that was looked at, and is finite."""
        self.since_mark = self.looks = False
        for place, parameter in enumerate(one for one in parameters if one.requires_grad):
            watch = self._watch_large if parameter.numel() >= LARGE else self._watch
            parameter.register_post_accumulate_grad_hook(watch(place))

    def _watch(self, place: int) -> Callable[[torch.Tensor], None]:
        seen = self._seen

        def note(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if gradient is not None:
                seen[place] = parameter, gradient, gradient._version
            self.since_mark = True

        return note

    def _watch_large(self, place: int) -> Callable[[torch.Tensor], None]:
        note, finite = self._watch(place), self._finite

        def look(parameter: torch.Tensor) -> None:
            note(parameter)
            finite.pop(place, None)
            gradient = parameter.grad if self.looks else None
            if gradient is not None and is_for_core(gradient) and is_finite_by_core(gradient):
                finite[place] = id(gradient)

        return look

    def mark(self) -> None:
        """Begin to look for a backward pass."""
        self.since_mark = False

    def forget(self) -> None:
        """Forget all gradients."""
        self._seen.clear()
        self._finite.clear()
        self.since_mark = False

    def found(self) -> bool:
        """Tell whether a gradient is another than the backward pass left; one that was removed is none."""
        for parameter, gradient, version in self._seen.values():
            now = parameter.grad
            if now is not None and (now is not gradient or gradient._version != version):
                return True
        return False

    def finite(self) -> frozenset[int]:
        """Return the `id` of each gradient that is known to be finite, unless it was changed."""
        return frozenset(self._finite.values())
