"""A framework of a few hundred lines in NumPy: the readable example of the contract in `worker/contract/`, and models that start at once.

What a model file imports is here: the base of models and three models, optimizers, and the base of callbacks.
"""

from __future__ import annotations

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
