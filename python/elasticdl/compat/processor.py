"""The base class of processors of predictions in ElasticDL 0.2; today a class with `process` needs none.

Its subclasses get what they were written for: TensorFlow's tensors, with `.numpy()`, where other processors get arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import wraps
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    """What gets the predictions of a job, minibatch by minibatch."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let a subclass get tensors."""
        super().__init_subclass__(**keywords)
        process = cls.__dict__.get("process")
        if process is None:
            return

        @wraps(process)  # with its parameters, of which it depends what it gets
        def with_tensors(self: Any, predictions: Any, *rest: Any, **named: Any) -> None:
            process(self, _tensors(predictions), *rest, **named)

        cls.process = with_tensors  # type: ignore[method-assign]

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the predictions of a minibatch, made by a worker: a tensor, or tensors by the names of the outputs."""


def _tensors(predictions: Any) -> Any:
    import tensorflow as tf  # what a model file of ElasticDL 0.2 has imported

    if isinstance(predictions, Mapping):
        return {name: tf.convert_to_tensor(one) for name, one in predictions.items()}
    return tf.convert_to_tensor(predictions)
