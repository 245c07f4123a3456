"""Models in NumPy: named parameters, and a function that returns loss and gradients.

All sums are over the examples of a batch, never means: the gradients of a step are added up and divided once, by the examples of the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a batch is worth.

    Attributes:
        loss: sum of the examples' losses.
        gradients: of each parameter, of the same shape, the gradient of that sum.
        rows: of each table the gradients of the rows that were looked up, in the order of the lookup, of shape [lookups, width].
        statistics: of each of them the value after this batch alone.
    """

    loss: float
    gradients: Arrays
    rows: Arrays = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a batch is outside of training.

    Attributes:
        loss: sum of the examples' losses.
        outputs: what the model gives: an array with one row for each example, or several by name.
    """

    loss: float
    outputs: Any


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table.

    Attributes:
        ids: it has rows of the ids from 0 up to this one.
        width: weights of a row.
        scale: first weights are drawn evenly between this and its negative.
    """

    ids: int
    width: int
    scale: float = 0.05


class Model(ABC):
    """The base of models. A model holds no values: it is given them."""

    @abstractmethod
    def parameters(self, random: np.random.Generator) -> Arrays:
        """Return the first value of each parameter, float32 or float64."""

    @abstractmethod
    def compute(
        self, values: Arrays, rows: Arrays, features: Any, labels: Array, random: np.random.Generator
    ) -> Computed:
        """Return loss and gradients of a batch.

        Args:
            values: of parameters and statistics.
            rows: of each table the rows of the ids that `ids` returned, of shape [lookups, width].
            features: what `feed` made.
            labels: what `feed` made, one for each example.
            random: for dropout and its like, seeded for this batch.
        """

    def evaluate(self, values: Arrays, rows: Arrays, features: Any, labels: Array) -> Evaluated:
        """Return loss and outputs of a batch, without randomness; the arguments are those of `compute`. Needed by evaluations only."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate")

    def statistics(self) -> Arrays:
        """Return the first value of what is not trained but follows the data, such as running means."""
        return {}

    def tables(self) -> Mapping[str, Table]:
        """Return the embedding tables."""
        return {}

    def ids(self, features: Any) -> Arrays:
        """Return the ids that a batch looks up in each table, of shape [lookups]."""
        return {}


class Linear(Model):
    """Linear regression: labels[i] ≈ features[i] · weights + bias, loss (difference)²."""

    def __init__(self, features: int) -> None:
        self._features = features

    def parameters(self, random: np.random.Generator) -> Arrays:
        """Return weights of shape [features] and a bias, drawn normally and zero."""
        weights = random.normal(0.0, 0.1, self._features).astype(np.float32)
        return {"weights": weights, "bias": np.zeros(1, np.float32)}

    def compute(
        self, values: Arrays, rows: Arrays, features: Any, labels: Array, random: np.random.Generator
    ) -> Computed:
        """Return loss and gradients of a batch; `features` of shape [examples, features]."""
        difference = self._outputs(values, features) - labels
        slope = 2 * difference
        return Computed(
            float((difference * difference).sum()),
            {"weights": slope @ features, "bias": slope.sum(keepdims=True)},
        )

    def evaluate(self, values: Arrays, rows: Arrays, features: Any, labels: Array) -> Evaluated:
        """Return loss and outputs of a batch; outputs are of shape [examples]."""
        outputs = self._outputs(values, features)
        difference = outputs - labels
        return Evaluated(float((difference * difference).sum()), outputs)

    def _outputs(self, values: Arrays, features: Any) -> Array:
        outputs: Array = features @ values["weights"] + values["bias"][0]
        return outputs


class Softmax(Model):
    """A linear classifier with cross entropy, on features that are centred by their running mean."""

    def __init__(self, features: int, classes: int, dropout: float = 0.0) -> None:
        """`dropout`: share of the features that a batch does not see, each for itself."""
        self._features, self._classes, self._dropout = features, classes, dropout

    def parameters(self, random: np.random.Generator) -> Arrays:
        """Return weights of shape [features, classes] and a bias for each class, drawn normally and zero."""
        weights = random.normal(0.0, 0.05, (self._features, self._classes)).astype(np.float32)
        return {"weights": weights, "bias": np.zeros(self._classes, np.float32)}

    def statistics(self) -> Arrays:
        """Return the running mean of the features."""
        return {"mean": np.zeros(self._features, np.float32)}

    def compute(
        self, values: Arrays, rows: Arrays, features: Any, labels: Array, random: np.random.Generator
    ) -> Computed:
        """Return loss and gradients of a batch; `features` of shape [examples, features], labels are classes."""
        seen = features - values["mean"]
        if self._dropout:
            kept = random.random(seen.shape) >= self._dropout
            seen = np.where(kept, seen / (1 - self._dropout), 0).astype(seen.dtype)
        loss, shares = self._shares(values, seen, labels)
        shares[np.arange(len(labels)), labels] -= 1
        mean = 0.9 * values["mean"] + 0.1 * features.mean(axis=0)
        return Computed(
            loss, {"weights": seen.T @ shares, "bias": shares.sum(axis=0)}, statistics={"mean": mean}
        )

    def evaluate(self, values: Arrays, rows: Arrays, features: Any, labels: Array) -> Evaluated:
        """Return loss and outputs of a batch; outputs are the classes' probabilities, of shape [examples, classes]."""
        return Evaluated(*self._shares(values, features - values["mean"], labels))

    def _shares(self, values: Arrays, seen: Array, labels: Array) -> tuple[float, Array]:
        scores = seen @ values["weights"] + values["bias"]
        scores = scores - scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        loss = -float(np.log(np.maximum(shares[np.arange(len(labels)), labels], 1e-30)).sum())
        return loss, shares


class EmbeddingSum(Model):
    """A score from ids: the sigmoid of a dense layer over the sum of the ids' rows, for labels 0 and 1."""

    def __init__(self, ids: int, width: int = 4) -> None:
        self._ids, self._width = ids, width

    def parameters(self, random: np.random.Generator) -> Arrays:
        """Return weights of shape [width] and a bias, drawn normally and zero."""
        weights = random.normal(0.0, 0.5, self._width).astype(np.float32)
        return {"weights": weights, "bias": np.zeros(1, np.float32)}

    def tables(self) -> Mapping[str, Table]:
        """Return the one table."""
        return {"embeddings": Table(self._ids, self._width)}

    def ids(self, features: Any) -> Arrays:
        """Return the ids of a batch, one example's after the other's."""
        return {"embeddings": features.reshape(-1)}

    def compute(
        self, values: Arrays, rows: Arrays, features: Any, labels: Array, random: np.random.Generator
    ) -> Computed:
        """Return loss and gradients of a batch; `features` of shape [examples, ids of an example]."""
        summed, loss, outputs = self._outputs(values, rows, features, labels)
        slope = (outputs - labels).astype(np.float32)
        of_rows = np.repeat(slope[:, None] * values["weights"], features.shape[1], axis=0)
        return Computed(
            loss,
            {"weights": slope @ summed, "bias": slope.sum(keepdims=True)},
            {"embeddings": of_rows.astype(np.float32)},
        )

    def evaluate(self, values: Arrays, rows: Arrays, features: Any, labels: Array) -> Evaluated:
        """Return loss and outputs of a batch; outputs are the probabilities of the label 1, of shape [examples]."""
        _, loss, outputs = self._outputs(values, rows, features, labels)
        return Evaluated(loss, outputs)

    def _outputs(
        self, values: Arrays, rows: Arrays, features: Any, labels: Array
    ) -> tuple[Array, float, Array]:
        """Return the sums of the examples' rows, the loss and the probabilities."""
        summed = rows["embeddings"].reshape(len(labels), features.shape[1], self._width).sum(axis=1)
        score = summed @ values["weights"] + values["bias"][0]
        loss = float((np.logaddexp(0, score) - labels * score).sum())
        return summed, loss, 1 / (1 + np.exp(-score))
