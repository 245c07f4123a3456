"""Making a user's model, optimizer and batches, with errors that name the file and say what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from elasticdl.errors import BadData, BadModel
from elasticdl.mxnet.internals import is_sparse
from elasticdl.mxnet.runtime import seed_chunk
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, count, mapped
from elasticdl.worker.usercode import fed, function_name, run

_REMEDY = "feed returns (features, labels) or (features, labels, weights): arrays of NumPy, or tuples of them"
_TYPES = ("float32", "float64", "float16", "int8", "int32", "int64", "uint8", "bool")
"""Of arrays, that MXNet takes."""


def doubled(batch: Batch) -> Batch:
    """Return the batch with each example once more."""

    def twice(array: Any) -> Any:
        return None if array is None else np.concatenate([array, array])

    return replace(batch.changed(lambda arrays: mapped(twice, arrays)), examples=2 * batch.examples)


def make_model(user: UserModel, seed: int, sample: Batch | None) -> Any:
    """Return what the user's model function returns, initialized, with the same weights and names in all workers.

    Shapes that the model leaves open are the sample's; without one they stay open. Raises BadModel.
    """
    seed_chunk(seed, 0, 0)
    with mx.name.NameManager():  # names end in numbers, which begin at 0 here
        made = run(user, user.model, **user.params)
    if mx.util.is_np_array() or mx.util.is_np_shape():
        raise BadModel(f"{user.path}: npx.set_np() is in force, and models get arrays of mx.nd; leave it out")
    if not isinstance(made, mx.gluon.HybridBlock):
        raise BadModel(
            f"{user.path}: {function_name(user.model)} returned a {type(made).__name__}; expected a gluon.HybridBlock"
        )
    made.apply(lambda block: _refuse_grouped(block, user))
    parameters = parameters_of(made).values()
    for one in parameters:
        _check_parameter(one, user)
    if sample is not None and any(is_open(one) for one in parameters):
        if not sample.examples:
            raise BadData(
                f"{user.path}: feed made no example of the first records, by which the model's shapes are found; state them in the model "
                "(in_units, in_channels), or give other records"
            )
        seed_chunk(seed, 0, 1)  # initial values are drawn now
        made(*arrays_of(sample.features))
        mx.nd.waitall()
    return made


def is_open(parameter: Any) -> bool:
    """Tell whether a parameter's shape is not known yet."""
    return parameter.shape is None or not all(size > 0 for size in parameter.shape)


def _refuse_grouped(block: Any, user: UserModel) -> None:
    if isinstance(block, mx.gluon.contrib.nn.SyncBatchNorm):
        raise BadModel(
            f"{user.path}: the model has a SyncBatchNorm, which wants several devices in one process; use gluon.nn.BatchNorm: the job "
            "averages statistics itself"
        )


def _check_parameter(one: Any, user: UserModel) -> None:
    where = f"{user.path}: the parameter {one.name}"
    if is_sparse(one):
        raise BadModel(
            f"{where} or its gradient is sparse, and workers exchange dense ones; leave stype, grad_stype and sparse_grad out"
        )
    if one.grad_req == "add":
        raise BadModel(f'{where} has grad_req="add"; leave it out: the job adds up gradients itself')
    try:
        places = one.list_ctx()
    except RuntimeError:  # not initialized
        one.initialize(ctx=mx.cpu())
        return
    if places != [mx.cpu()]:
        raise BadModel(
            f"{where} is on {', '.join(map(str, places))}; initialize the model on mx.cpu(), where jobs train models of MXNet"
        )


def make_optimizer(user: UserModel, parameters: Mapping[int, Any]) -> Any:
    """Return the user's optimizer of these parameters, as a Trainer makes it. Raises BadModel."""
    made = run(user, user.optimizer)
    name, keywords = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if isinstance(name, str) and isinstance(keywords, dict):
        return run(user, mx.optimizer.create, name, param_dict=dict(parameters), **keywords)
    if isinstance(made, mx.gluon.Trainer):
        raise BadModel(
            f"{user.path}: {function_name(user.optimizer)} returned a Trainer; return the optimizer that it is made with: the job "
            "takes a Trainer's place, and averages gradients itself, without a kvstore"
        )
    if not isinstance(made, mx.optimizer.Optimizer):
        raise BadModel(
            f"{user.path}: {function_name(user.optimizer)} returned a {type(made).__name__}; expected an mx.optimizer.Optimizer, a "
            "name of one, or (name, parameters)"
        )
    made.param_dict = dict(parameters)
    return made


def parameters_of(model: Any) -> dict[str, Any]:
    """Return the parameters of a model by name."""
    return dict(
        model.collect_params().items()
    )  # asked for a name, what is returned there would make a parameter


def numbered_parameters(model: Any) -> dict[int, Any]:
    """Return the parameters of a model by the numbers that a Trainer gives them."""
    return {number: one for number, (_, one) in enumerate(sorted(parameters_of(model).items()))}


def arrays_of(arrays: Any) -> Any:
    """Return arrays of MXNet for those of NumPy, or for a tuple of them; None for None."""
    return mapped(lambda one: None if one is None else mx.nd.array(one, dtype=one.dtype), arrays)


def loss_of(user: UserModel, batch: Batch, outputs: Any) -> Any:
    """Return the loss of a batch: of shape [n], or a single value, the mean. Raises BadModel for anything else."""
    labels = arrays_of(batch.labels)
    is_block = isinstance(user.loss, mx.gluon.loss.Loss)
    found = user.loss(outputs, labels) if is_block else user.loss(labels, outputs)
    if not isinstance(found, mx.nd.NDArray) or found.ndim > 1 or found.shape[0] not in (1, batch.examples):
        raise BadModel(
            f"{user.path}: {function_name(user.loss)} returned {shown(found)} for {batch.examples} examples; expected one value for each, "
            "or one in all"
        )
    if batch.weights is None:
        return found
    if found.shape[0] != batch.examples:
        raise BadModel(
            f"{user.path}: feed gives weights of the examples, and {function_name(user.loss)} returned one value for all; let it return "
            "one value per example"
        )
    return found * arrays_of(batch.weights)


class Feed:
    """The user's `feed` in one mode; batches are in arrays of NumPy: they are made in another thread than MXNet's."""

    def __init__(self, user: UserModel, mode: str, metadata: Any) -> None:
        """`metadata`: what the reader knows of its records, the third argument of `feed`."""
        self._user, self._mode, self._metadata = user, mode, metadata

    def __call__(self, records: Records) -> Batch:
        """Return the batch made of a chunk's records, which are arrays by name if they are columns. Raises BadData."""
        made = fed(self._user, records, self._mode, self._metadata)
        predicts = self._mode == Mode.PREDICTION
        if predicts and isinstance(made, np.ndarray):
            made = (made, None)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise BadData(f"{self._user.path}: feed returned a {type(made).__name__}; {_REMEDY}")
        features = self._arrays(made[0])
        labels = None if predicts else self._arrays(made[1])
        weights = self._arrays(made[2]) if len(made) == 3 and not predicts else None
        features = features if isinstance(features, tuple) else (features,)
        counted = (*features, *_leaves(labels), *_leaves(weights))
        return Batch(count(counted, self._user.path, "arrays"), features, labels, weights)

    def _arrays(self, made: Any) -> Any:
        if isinstance(made, tuple):
            return tuple(map(self._arrays, made))
        if not isinstance(made, np.ndarray):
            raise BadData(f"{self._user.path}: feed returned a {type(made).__name__}; {_REMEDY}")
        if not made.ndim:
            raise BadData(f"{self._user.path}: feed returned a scalar; {_REMEDY}")
        if str(made.dtype) not in _TYPES:
            raise BadData(
                f"{self._user.path}: feed returned an array of {made.dtype}; MXNet takes {', '.join(_TYPES)}: use astype"
            )
        return made


def _leaves(arrays: Any) -> Sequence[npt.NDArray[Any]]:
    if arrays is None:
        return ()
    return arrays if isinstance(arrays, tuple) else (arrays,)


def shown(value: Any) -> str:
    """Return types and shapes of arrays, for messages."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, mx.nd.NDArray | np.ndarray):
        return f"{np.dtype(value.dtype)} {list(value.shape)}"
    return f"a {type(value).__name__}"


def given(batch: Batch) -> str:
    """Return what `feed` gave, for messages."""
    return f"{shown(batch.features)} and labels {shown(batch.labels)}"


def named_outputs(outputs: Any) -> Mapping[str, Any]:
    """Return what a model with several outputs gives, by name; empty if it has one."""
    return (
        {f"output{place}": one for place, one in enumerate(outputs)}
        if isinstance(outputs, list | tuple)
        else {}
    )
