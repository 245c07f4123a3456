"""The decorator of ElasticDL 0.2 for classes of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def declare_model_inputs(*args: str) -> Callable[[_Class], _Class]:
    """Return what notes on a class how its inputs are called. Raises ValueError for none, and for names that are no text."""

    def decorated(kind: _Class) -> _Class:
        if not args or not all(isinstance(name, str) for name in args):
            raise ValueError(f"declare_model_inputs takes the names of a model's inputs; received {args!r}")
        kind._model_inputs = list(args)  # type: ignore[attr-defined]
        return kind

    return decorated
