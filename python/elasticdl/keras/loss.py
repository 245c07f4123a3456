"""The loss of a chunk as one scalar: the user's loss, whatever its form, and the layers' own.

It differentiates nothing. The scalar is a mean over the chunk's examples, as everywhere in Keras; a loss that returns one value per
example is averaged here, so that Keras' functional losses can be named as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.library import Library, library_of


class ChunkLoss:
    """(labels, predictions, sample weights or None) → scalar tensor, a mean over the examples."""

    def __init__(self, loss: Any, where: str, library: Library) -> None:
        """`loss`: a function, a Keras loss (or its class), or a dict of them by output; `where` names it in messages.

        `library`: of the model.
        """
        self._where = where
        self._loss = (
            {key: _instance(part, library) for key, part in loss.items()}
            if isinstance(loss, Mapping)
            else _instance(loss, library)
        )

    def __call__(self, labels: Any, predictions: Any, weights: Any) -> Any:
        """Return the scalar. Raises BadModel if what the loss returns is no loss."""
        if not isinstance(self._loss, dict):
            return self._mean(self._loss, labels, predictions, weights, self._where)
        for what, given in (("predictions", predictions), ("labels", labels)):
            if not isinstance(given, Mapping) or not set(self._loss) <= set(given):
                shown = sorted(given) if isinstance(given, Mapping) else type(given).__name__
                raise BadModel(
                    f"{self._where} is a dict by output: expected {what} with the keys {sorted(self._loss)}, received {shown}"
                )
        total: Any = None
        for key, loss in self._loss.items():
            weight = weights.get(key) if isinstance(weights, Mapping) else weights
            part = self._mean(loss, labels[key], predictions[key], weight, f"{self._where}[{key!r}]")
            total = part if total is None else total + part
        return total

    def _mean(self, loss: Any, labels: Any, predictions: Any, weights: Any, where: str) -> Any:
        taken = weights is None
        if taken:
            value = loss(labels, predictions)
        elif _is_loss(type(loss)) or "sample_weight" in _parameters(loss):
            value = loss(labels, predictions, sample_weight=weights)
            taken = True
        else:
            value = loss(labels, predictions)
        try:
            value = tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            raise BadModel(
                f"{where}: expected a scalar or one value per example, received {value!r}"
            ) from None
        if not value.dtype.is_floating:
            raise BadModel(f"{where}: expected a loss of a float type, received {value.dtype.name}")
        if value.shape.rank == 0:
            if not taken:
                raise BadModel(
                    f"{where}: feed gives sample weights, but the loss is a function that returns a scalar; "
                    "take a third parameter sample_weight, or return one value per example"
                )
            return value
        expected = tf.nest.flatten(predictions)[0].shape
        if (
            value.shape.rank is not None
            and expected.rank
            and not value.shape[:1].is_compatible_with(expected[:1])
        ):
            raise BadModel(
                f"{where}: expected a scalar or one value per example (shape {expected[:1]}), received the shape {value.shape}"
            )
        if not taken:
            weights = tf.cast(weights, value.dtype)
            value = value * tf.reshape(weights, [-1] + [1] * (value.shape.rank - 1))
        return tf.reduce_mean(value)


def _instance(loss: Any, library: Library) -> Any:
    if isinstance(loss, type) and _is_loss(loss):
        return loss()
    if isinstance(loss, str):
        return library.package.losses.get(loss)
    return loss


def _is_loss(kind: type) -> bool:
    return issubclass(kind, library_of(kind).package.losses.Loss)


def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
