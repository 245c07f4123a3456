"""A chunk as a user's `feed` returns it: trees of features and labels, and weights, with errors that say what was expected.

A tree is an array, or a tuple or dict of trees. What an array is, and what becomes one, is the framework's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.errors import BadData
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.usercode import fed


@dataclass(frozen=True, slots=True)
class Batch:
    """A chunk as a model takes it.

    Attributes:
        examples: n; 0 if `feed` made none of the records.
        features: an array, a tuple of arrays (positional arguments of the model) or a dict of them (keyword arguments).
        labels: likewise, given to the loss; None in a prediction.
        weights: of the examples, shape [n], or None.
    """

    examples: int
    features: Any = field(repr=False)
    labels: Any = field(default=None, repr=False)
    weights: Any = field(default=None, repr=False)

    def changed(self, change: Callable[[Any], Any]) -> Batch:
        """Return the batch with other trees for its own, such as on another device."""
        return Batch(self.examples, change(self.features), change(self.labels), change(self.weights))


@dataclass(frozen=True, slots=True)
class Expected:
    """What a framework's `feed` returns.

    Attributes:
        array: returns the array of what `feed` returned for one; raises BadData, without the file and the remedy.
        noun: for several arrays, in messages.
        remedy: what to return, in messages.
    """

    array: Callable[[Any], Any]
    noun: str
    remedy: str


class Feed:
    """The user's `feed` in one mode."""

    def __init__(self, user: UserModel, mode: str, metadata: Any, expected: Expected) -> None:
        """`metadata`: what the reader knows of its records, the third argument of `feed`."""
        self._user, self._mode, self._metadata, self._expected = user, mode, metadata, expected

    def __call__(self, records: Records) -> Batch:
        """Return the batch made of a chunk's records, which are arrays by name if they are columns. Raises BadData."""
        made = fed(self._user, records, self._mode, self._metadata)
        predicts = self._mode == Mode.PREDICTION
        if predicts and not (isinstance(made, tuple) and len(made) in (2, 3)):
            made = (made, None)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise self._refused(f"feed returned a {type(made).__name__}")
        features, *others = (mapped(self._array, one) for one in made[: 1 if predicts else None])
        labels, weights = (*others, None, None)[:2]
        arrays = (*leaves(features), *leaves(labels), *leaves(weights))
        return Batch(count(arrays, self._user.path, self._expected.noun), features, labels, weights)

    def _array(self, made: Any) -> Any:
        try:
            array = self._expected.array(made)
        except BadData as error:
            raise self._refused(str(error)) from None
        if not array.ndim:
            raise self._refused("feed returned a scalar")
        return array

    def _refused(self, why: str) -> BadData:
        return BadData(f"{self._user.path}: {why}; {self._expected.remedy}")


def count(arrays: Iterable[Any], path: Path, noun: str) -> int:
    """Return how many examples all of the arrays have. Raises BadData, which names them with `noun`, if they differ."""
    counts = {len(one) for one in arrays}
    if len(counts) != 1:
        raise BadData(
            f"{path}: feed returned {' and '.join(map(str, sorted(counts)))} examples; all {noun} have one for each"
        )
    return counts.pop()


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with others for its arrays."""
    if isinstance(tree, Mapping):
        return {name: mapped(change, one) for name, one in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(change, one) for one in tree)
    return change(tree)


def leaves(tree: Any) -> Sequence[Any]:
    """Return the arrays of a tree, in which there may be lists, in order; none of None."""
    if tree is None:
        return ()
    if isinstance(tree, Mapping):
        return [leaf for one in tree.values() for leaf in leaves(one)]
    if isinstance(tree, tuple | list):
        return [leaf for one in tree for leaf in leaves(one)]
    return (tree,)


def call(model: Callable[..., Any], features: Any) -> Any:
    """Call a model: a tuple of features are positional arguments, a dict keyword arguments."""
    if isinstance(features, tuple):
        return model(*features)
    if isinstance(features, Mapping):
        return model(**features)
    return model(features)
