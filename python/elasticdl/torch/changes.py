"""Whether a program has changed gradients after the backward pass, as clipping does.

A gradient here is that of one batch, while a step may have several in several workers, so a change that is not linear would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class GradientChanges:
    """Remembers each gradient as the backward pass left it.

    Attributes:
        since_mark: gradients were computed since `mark`.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watch parameters; those that are frozen now are not watched."""
        self._parameters = [one for one in parameters if one.requires_grad]
        self._seen: dict[int, tuple[torch.Tensor, int]] = {}
        self.since_mark = False
        for place, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._watch(place))

    def _watch(self, place: int) -> Callable[[torch.Tensor], None]:
        seen = self._seen

        def note(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if gradient is not None:
                seen[place] = gradient, gradient._version
            self.since_mark = True

        return note

    def mark(self) -> None:
        """Begin to look for a backward pass."""
        self.since_mark = False

    def forget(self) -> None:
        """Forget all gradients."""
        self._seen.clear()
        self.since_mark = False

    def found(self) -> bool:
        """Tell whether a gradient is another than the backward pass left; one that was removed is none."""
        for place, (gradient, version) in self._seen.items():
            now = self._parameters[place].grad
            if now is not None and (now is not gradient or now._version != version):
                return True
        return False
