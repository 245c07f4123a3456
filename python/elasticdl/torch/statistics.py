"""The buffers of a model with parameter servers: what a chunk changes is added on the servers, so each chunk begins with their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from elasticdl.errors import BadModel
from elasticdl.torch.building import plain

_COMPARED = 64 << 10
"""Bytes of a constant that is compared after each chunk; of larger ones only the version is looked at."""
_WHOLE = 1 << 24
"""Whole numbers up to this are exact as float32, which servers hold."""


class Statistics:
    """The buffers that training changes, such as those of batch normalization; the others are constants.

    Attributes:
        changing: by name; known once a chunk was `watched`. Those of normalization always are, whatever that chunk was.
    """

    def __init__(self, model: torch.nn.Module, path: Path) -> None:
        """`path`: of the model file."""
        self._path = path
        model = plain(model)
        self._buffers = dict(model.named_buffers())
        self._known = {
            id(buffer)
            for one in model.modules()
            if isinstance(one, torch.nn.modules.batchnorm._NormBase)
            for buffer in one.buffers(recurse=False)
        }
        self.changing: dict[str, torch.Tensor] = {}
        self._kept: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Find out which buffers a chunk changes, and give them their values again. Raises BadModel for one that servers can't hold."""
        self._kept = {name: one.clone() for name, one in self._buffers.items()}
        self._remember()
        yield
        for name, value in list(self._kept.items()):
            buffer = self._buffers[name]
            if not (self._is_changed(name) or id(buffer) in self._known):
                if _size(buffer) > _COMPARED:
                    del self._kept[name]
                continue
            self._check(name, value)
            self._check(name, buffer)
            buffer.copy_(value)
            self.changing[name] = buffer

    def _is_changed(self, name: str) -> bool:
        """Tell whether a buffer is not as it was kept: kernels of normalization write without a new version."""
        buffer, kept = self._buffers[name], self._kept.get(name)
        return buffer._version != self._versions[name] or (kept is not None and not torch.equal(buffer, kept))

    def _check(self, name: str, value: torch.Tensor) -> None:
        whole = not value.is_floating_point() and not value.is_complex() and value.dtype is not torch.bool
        if value.dtype is torch.float32 or (whole and (value.abs() < _WHOLE).all()):
            return
        raise BadModel(
            f"{self._path}: training changes the buffer {name!r}, which is of type {str(value.dtype).removeprefix('torch.')}"
            f"{' and has numbers of more than 24 bits' if whole else ''}; parameter servers hold float32 only"
        )

    def take(self, name: str, value: torch.Tensor) -> None:
        """Replace a changing buffer's value; `value`: flat."""
        for one in (self.changing[name], self._kept[name]):
            one.copy_(value.view(one.shape))

    def _remember(self) -> None:
        self._versions = {name: one._version for name, one in self._buffers.items()}

    def begin(self) -> None:
        """Begin a chunk."""
        self._remember()

    def end(self) -> list[torch.Tensor]:
        """Return how far a chunk has changed each of `changing`, and give them their values again. Raises BadModel for a constant."""
        for name in self._buffers:
            if name not in self.changing and self._is_changed(name):
                raise BadModel(
                    f"{self._path}: training changes the buffer {name!r} now and did not at first, when it was taken for a constant; "
                    "let each step change it, or none"
                )
        changes = []
        for name, buffer in self.changing.items():
            changes.append(buffer - self._kept[name])
            buffer.copy_(self._kept[name])
        return changes


def _size(buffer: torch.Tensor) -> int:
    return int(buffer.numel() * buffer.element_size())
