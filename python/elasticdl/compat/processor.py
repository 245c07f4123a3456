"""The base class of processors of predictions in ElasticDL 0.2; today a class with `process` needs none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    """What gets the predictions of a job, minibatch by minibatch."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the predictions of a minibatch, made by a worker."""
