"""Making a user's model, optimizer and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx

from elasticdl.errors import BadData, BadModel
from elasticdl.jax.runtime import seed_python
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, Expected, Feed, call
from elasticdl.worker.modelfile import accepted
from elasticdl.worker.seeds import chunk_seeds
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure, function_name, run

_REMEDY = "feed returns (features, labels) or (features, labels, weights): arrays, or tuples or dicts of them"


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
            f"{user.path}: {function_name(user.model)} returned a {type(made).__name__}; expected a flax.nnx.Module{hint}"
        )
    if _lacks_variables(made):
        if sample is None or not sample.examples:
            raise BadModel(
                f"{user.path}: the shapes of a linen module are those of its first batch, and there is no data here; call "
                f"lazy_init(x) of nnx.bridge.ToNNX in {function_name(user.model)}"
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
        raise failure(user, FIRST_OUTPUTS, error, shown(sample.features)) from error


def _lacks_variables(model: nnx.Module) -> bool:
    return any(
        isinstance(module, nnx.bridge.ToNNX) and not jax.tree.leaves(nnx.state(module, nnx.Not(nnx.RngState)))
        for _, module in nnx.iter_modules(model)
    )


def _check_parameters(user: UserModel, model: nnx.Module) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.as_pure(nnx.state(model, nnx.Param)))
    if not leaves:
        raise BadModel(
            f"{user.path}: {function_name(user.model)} returned a model without any nnx.Param; nothing of it can be trained"
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
            f"{user.path}: {function_name(user.optimizer)} returned a {type(made).__name__}; expected an optimizer of optax{hint}"
        )
    return made


def loss_of(user: UserModel, batch: Batch, outputs: Any) -> jax.Array:
    """Return the mean loss of a batch, a scalar. Raises BadModel for anything but a scalar or one value per example."""
    found = user.loss(batch.labels, outputs)
    if not isinstance(found, jax.Array) or not jnp.issubdtype(found.dtype, jnp.floating) or found.ndim > 1:
        shown_as = f"an array {shown(found)}" if isinstance(found, jax.Array) else f"a {type(found).__name__}"
        raise BadModel(
            f"{user.path}: {function_name(user.loss)} returned {shown_as}; expected an array with one value, or with one per example"
        )
    if found.ndim == 1:
        if len(found) != batch.examples:
            raise BadModel(
                f"{user.path}: {function_name(user.loss)} returned {len(found)} values for {batch.examples} examples; expected one for each"
            )
        return found.mean() if batch.weights is None else (found * batch.weights).sum() / batch.examples
    if batch.weights is not None:
        raise BadModel(
            f"{user.path}: feed gives weights of the examples, and {function_name(user.loss)} returned their mean; let it return one value "
            "per example"
        )
    return found


def make_feed(user: UserModel, mode: str, metadata: Any) -> Feed:
    """Return the user's `feed` in one mode, of arrays of NumPy; `metadata`: its third argument, what the reader knows of its records."""
    return Feed(user, mode, metadata, Expected(_array, "arrays", _REMEDY))


def _array(made: Any) -> npt.NDArray[Any]:
    array = np.asarray(made)
    if array.dtype.kind in "OSUMmT":
        raise BadData(
            f"feed returned a {type(made).__name__} of type {array.dtype}, which is none of numbers"
        )
    return array


def shown(arrays: Any) -> str:
    """Return types and shapes of arrays, for messages."""
    if isinstance(arrays, Mapping):
        return "{" + ", ".join(f"{name}: {shown(one)}" for name, one in arrays.items()) + "}"
    if isinstance(arrays, tuple | list):
        return f"({', '.join(map(shown, arrays))})"
    return f"{arrays.dtype} {list(arrays.shape)}" if hasattr(arrays, "dtype") else repr(arrays)


def given(batch: Batch) -> str:
    """Return what `feed` gave, for messages."""
    return f"{shown(batch.features)} and labels {shown(batch.labels)}"
