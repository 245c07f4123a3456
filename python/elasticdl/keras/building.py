"""Making the user's model and optimizer: calls of the model file's functions, and errors that say which file and what was expected.

The first weights are a function of the job's seed, and variables have the same names in every life of every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from elasticdl.errors import BadModel
from elasticdl.keras.runtime import without
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


def new_model(user: UserModel, seed: int) -> Any:
    """Return what the user's model function returns; a subclassed model has no variables yet. Raises BadModel."""
    keras.utils.clear_session(free_memory=False)
    with without("tensorflow"):  # which this would import to seed it, whatever Keras computes with
        keras.utils.set_random_seed(seed % 2**32)
    return _made(user, user.model, keras.Model, "a keras.Model", user.params)


def make_optimizer(user: UserModel) -> Any:
    """Return the user's optimizer. Raises BadModel for anything that is none."""
    return _made(user, user.optimizer, keras.optimizers.Optimizer, "a Keras optimizer", {})


def built_optimizer(user: UserModel, model: Any) -> Any:
    """Return the user's optimizer with its variables for a model, as a group trains with it. Raises BadModel."""
    optimizer = make_optimizer(user)
    if model.dtype_policy.name == "mixed_float16" and not isinstance(
        optimizer, keras.optimizers.LossScaleOptimizer
    ):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)  # as Model.compile does
    if not model.trainable_variables:
        raise BadModel(f"{user.path}: the model has no trainable variables")
    optimizer.build(model.trainable_variables)
    return optimizer


def _made(user: UserModel, function: Any, kind: type, expected: str, keywords: Mapping[str, Any]) -> Any:
    name = getattr(function, "__name__", repr(function))
    try:
        made = function(**keywords)
    except BadModel:
        raise
    except Exception as error:
        raise BadModel(f"{user.path}: {name} failed: {describe(error, user.path)}") from error
    if not isinstance(made, kind):
        raise BadModel(f"{user.path}: {name} returned a {type(made).__name__}; expected {expected}")
    return made
