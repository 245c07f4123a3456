"""The loss of a chunk as one scalar: the user's loss, whatever its form, and the layers' own.

It differentiates nothing. The scalar is a mean over the chunk's examples, as everywhere in Keras; a loss that returns one value per
example is averaged here, so that Keras' functional losses can be named as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from elasticdl.errors import BadModel
from elasticdl.keras.library import KERAS, Library, library_of


class ChunkLoss:
    """(labels, predictions, sample weights or None) → scalar tensor, a mean over the examples."""

    def __init__(self, loss: Any, where: str, library: Library = KERAS) -> None:
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
            value = keras.ops.convert_to_tensor(value)
        except (TypeError, ValueError):
            raise BadModel(
                f"{where}: expected a scalar or one value per example, received {value!r}"
            ) from None
        kind, shape = keras.backend.standardize_dtype(value.dtype), shape_of(value)
        if not keras.backend.is_float_dtype(kind):
            raise BadModel(f"{where}: expected a loss of a float type, received {kind}")
        if shape == ():
            if not taken:
                raise BadModel(
                    f"{where}: feed gives sample weights, but the loss is a function that returns a scalar; "
                    "take a third parameter sample_weight, or return one value per example"
                )
            return value
        expected = shape_of(keras.tree.flatten(predictions)[0])
        if shape and expected and not may_be(shape[0], expected[0]):
            raise BadModel(
                f"{where}: expected a scalar or one value per example (shape {list(expected[:1])}), received the shape {list(shape)}"
            )
        if not taken:
            weights = keras.ops.cast(weights, kind)
            value = value * keras.ops.reshape(weights, [-1] + [1] * (len(value.shape) - 1))
        return keras.ops.mean(value)


def shape_of(tensor: Any) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor, None where a dimension is not known; None for one of TensorFlow's of which nothing is known."""
    return None if getattr(tensor.shape, "rank", 0) is None else tuple(tensor.shape)


def may_be(one: int | None, other: int | None) -> bool:
    """Tell whether two dimensions may be the same."""
    return one is None or other is None or one == other


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
