"""Making a user's model, optimizer and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx

from elasticdl.errors import BadData, BadModel
from elasticdl.jax.runtime import seed_python
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import accepted, describe
from elasticdl.worker.seeds import chunk_seeds

_REMEDY = "feed returns (features, labels) or (features, labels, weights): arrays, or tuples or dicts of them"


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
    weights: npt.NDArray[Any] | None = field(default=None, repr=False)


def make_model(user: UserModel, seed: int, sample: Batch | None) -> nnx.Module:
    """Return what the user's model function returns, with the same weights in all workers.

    What the bridge has made of Flax's linen modules gets its variables from a sample. Raises BadModel, also if it would need one.
    """
    seed_python(seed)
    rngs = {name: nnx.Rngs(int(chunk_seeds(seed, 0, 0, 1)[0][0])) for name in accepted(user.model, ("rngs",))}
    made = run(user, user.model, **(rngs | dict(user.params)))
    if not isinstance(made, nnx.Module):
        hint = "; linen modules are used as nnx.bridge.ToNNX(module, rngs=rngs)" * hasattr(
            made, "init_with_output"
        )
        raise BadModel(
            f"{user.path}: {_name(user.model)} returned a {type(made).__name__}; expected a flax.nnx.Module{hint}"
        )
    if _lacks_variables(made):
        if sample is None or not sample.examples:
            raise BadModel(
                f"{user.path}: the shapes of a linen module are those of its first batch, and there is no data here; call "
                f"lazy_init(x) of nnx.bridge.ToNNX in {_name(user.model)}"
            )
        _initialize(user, made, sample)
    _check_parameters(user, made)
    return made


def _initialize(user: UserModel, model: nnx.Module, sample: Batch) -> None:
    """Let linen modules make their variables: they get shapes, and nothing else of the sample."""
    model.eval()
    try:
        call(
            lambda *arguments, **keywords: nnx.bridge.lazy_init(model, *arguments, **keywords),
            sample.features,
        )
    except Exception as error:
        raise BadModel(
            f"{user.path}: the model failed on the first records: {describe(error, user.path)}\nfeed gave {shown(sample.features)}"
        ) from error


def _lacks_variables(model: nnx.Module) -> bool:
    return any(
        isinstance(module, nnx.bridge.ToNNX) and not jax.tree.leaves(nnx.state(module, nnx.Not(nnx.RngState)))
        for _, module in nnx.iter_modules(model)
    )


def _check_parameters(user: UserModel, model: nnx.Module) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.as_pure(nnx.state(model, nnx.Param)))
    if not leaves:
        raise BadModel(
            f"{user.path}: {_name(user.model)} returned a model without any nnx.Param; nothing of it can be trained"
        )
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise BadModel(
                f"{user.path}: the parameter {name_of(path)} is of type {leaf.dtype}; parameters are floating-point: "
                "make it an nnx.Variable"
            )


def name_of(path: tuple[Any, ...]) -> str:
    """Return the name of a variable: the keys on the way to it, such as `layers/0/kernel`."""
    return str(jax.tree_util.keystr(path, simple=True, separator="/"))


def make_optimizer(user: UserModel) -> optax.GradientTransformation:
    """Return the user's optimizer. Raises BadModel."""
    made = run(user, user.optimizer)
    if not isinstance(made, optax.GradientTransformation):
        hint = "; call its gradient_transformation()" * isinstance(made, optax.MultiSteps)
        raise BadModel(
            f"{user.path}: {_name(user.optimizer)} returned a {type(made).__name__}; expected an optimizer of optax{hint}"
        )
    return made


def call(model: Callable[..., Any], features: Any) -> Any:
    """Call a model: a tuple of features are positional arguments, a dict keyword arguments."""
    if isinstance(features, tuple):
        return model(*features)
    if isinstance(features, Mapping):
        return model(**features)
    return model(features)


def loss_of(user: UserModel, batch: Batch, outputs: Any) -> jax.Array:
    """Return the mean loss of a batch, a scalar. Raises BadModel for anything but a scalar or one value per example."""
    found = user.loss(batch.labels, outputs)
    if not isinstance(found, jax.Array) or not jnp.issubdtype(found.dtype, jnp.floating) or found.ndim > 1:
        shown_as = f"an array {shown(found)}" if isinstance(found, jax.Array) else f"a {type(found).__name__}"
        raise BadModel(
            f"{user.path}: {_name(user.loss)} returned {shown_as}; expected a scalar, or one value per example"
        )
    if found.ndim == 1:
        if len(found) != batch.examples:
            raise BadModel(
                f"{user.path}: {_name(user.loss)} returned {len(found)} values for {batch.examples} examples; expected one for each"
            )
        return found.mean() if batch.weights is None else (found * batch.weights).sum() / batch.examples
    if batch.weights is not None:
        raise BadModel(
            f"{user.path}: feed gives weights of the examples, and {_name(user.loss)} returned their mean; let it return one value per "
            "example"
        )
    return found


class Feed:
    """The user's `feed` in one mode."""

    def __init__(self, user: UserModel, mode: str, metadata: Any) -> None:
        """`metadata`: what the reader knows of its records, the third argument of `feed`."""
        self._user, self._mode, self._metadata = user, mode, metadata

    def __call__(self, records: Records) -> Batch:
        """Return the batch made of a chunk's records, which are arrays by name if they are columns. Raises BadData."""
        given = records.arrays if isinstance(records, Columns) else records
        made = self._user.feed(given, self._mode, self._metadata)
        predicts = self._mode == Mode.PREDICTION
        if predicts and not (isinstance(made, tuple) and len(made) in (2, 3)):
            made = (made, None)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise BadData(f"{self._user.path}: feed returned a {type(made).__name__}; {_REMEDY}")
        features, labels, weights = self._arrays(made[0]), None, None
        if not predicts:
            labels = self._arrays(made[1])
            weights = self._arrays(made[2]) if len(made) == 3 else None
        counts = {len(one) for one in (*leaves(features), *leaves(labels), *leaves(weights))}
        if len(counts) != 1:
            raise BadData(
                f"{self._user.path}: feed returned {' and '.join(map(str, sorted(counts)))} examples; all arrays have one for each"
            )
        return Batch(counts.pop(), features, labels, weights)

    def _arrays(self, made: Any) -> Any:
        if isinstance(made, Mapping):
            return {name: self._arrays(one) for name, one in made.items()}
        if isinstance(made, tuple):
            return tuple(map(self._arrays, made))
        array = np.asarray(made)
        if array.dtype.kind in "OSUMmT":
            raise BadData(
                f"{self._user.path}: feed returned a {type(made).__name__} of type {array.dtype}, which is none of numbers; {_REMEDY}"
            )
        if not array.ndim:
            raise BadData(f"{self._user.path}: feed returned a scalar; {_REMEDY}")
        return array


def leaves(arrays: Any) -> Sequence[Any]:
    """Return the arrays of a tree of them, in order; none of None."""
    if arrays is None:
        return ()
    if isinstance(arrays, Mapping):
        return [leaf for one in arrays.values() for leaf in leaves(one)]
    if isinstance(arrays, tuple | list):
        return [leaf for one in arrays for leaf in leaves(one)]
    return (arrays,)


def shown(arrays: Any) -> str:
    """Return types and shapes of arrays, for messages."""
    if isinstance(arrays, Mapping):
        return "{" + ", ".join(f"{name}: {shown(one)}" for name, one in arrays.items()) + "}"
    if isinstance(arrays, tuple | list):
        return f"({', '.join(map(shown, arrays))})"
    return f"{arrays.dtype} {list(arrays.shape)}" if hasattr(arrays, "dtype") else repr(arrays)


def describe_failure(user: UserModel, batch: Batch, error: Exception) -> BadModel:
    """Return what is said when the first step fails: what `feed` gave, and what the user's code raised."""
    return BadModel(
        f"{user.path}: the first training step failed: {describe(error, user.path)}\n"
        f"feed gave {shown(batch.features)} and labels {shown(batch.labels)}"
    )


def run(user: UserModel, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function of a model file. Raises BadModel if it raises anything."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        raise BadModel(f"{user.path}: {_name(function)} failed: {describe(error, user.path)}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
