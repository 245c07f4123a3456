"""A framework of a few hundred lines in NumPy: the readable example of the contract in `worker/contract/`, and models that start at once.

What a model file imports is here: the base of models and three models, optimizers, and the base of callbacks. Importing this package does
not import NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.reference.models import Computed, EmbeddingSum, Evaluated, Linear, Model, Softmax, Table
    from elasticdl.reference.optimizers import SGD, Adam, Optimizer
    from elasticdl.worker.hooks import Callback

__all__ = [
    "SGD",
    "Adam",
    "Callback",
    "Computed",
    "EmbeddingSum",
    "Evaluated",
    "Linear",
    "Model",
    "Optimizer",
    "Softmax",
    "Table",
]

_ELSEWHERE = {"Callback": "elasticdl.worker.hooks"} | dict.fromkeys(
    ("SGD", "Adam", "Optimizer"), "elasticdl.reference.optimizers"
)


def __getattr__(name: str) -> Any:
    """Import what models use when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elasticdl.reference' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "elasticdl.reference.models")), name)


def __dir__() -> list[str]:
    """Return all names: tools that list the package, such as the documentation's, find those that are not imported yet, too."""
    return sorted({*globals(), *__all__})
