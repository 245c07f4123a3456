"""Making the user's model and optimizer: calls of the model file's functions, and errors that say which file and what was expected.

The first weights are a function of the job's seed, and variables have the same names in every life of every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.errors import BadModel
from elasticdl.keras.library import KERAS, Library, library_of
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


def new_model(user: UserModel, seed: int, library: Library = KERAS) -> Any:
    """Return what the user's model function returns; a subclassed model has no variables yet. Raises BadModel."""
    library.begin(seed)
    model = _made(user, user.model, user.params)
    if not isinstance(model, library.package.Model):
        raise _other(user, user.model, model, library, f"a {library.package.__name__}.Model")
    return model


def make_optimizer(user: UserModel, model: Any) -> Any:
    """Return the user's optimizer. Raises BadModel for anything that is none of the model's library."""
    optimizer, library = _made(user, user.optimizer, {}), library_of(model)
    if not library.is_optimizer(optimizer):
        raise _other(user, user.optimizer, optimizer, library, f"a {library.name} optimizer")
    return optimizer


def built_optimizer(user: UserModel, model: Any) -> Any:
    """Return the user's optimizer with its variables for a model, as a group trains with it. Raises BadModel."""
    library = library_of(model)
    optimizer = library.scaled(model, make_optimizer(user, model))
    if not model.trainable_variables:
        raise BadModel(f"{user.path}: the model has no trainable variables")
    library.build(optimizer, model)
    return optimizer


def _made(user: UserModel, function: Any, keywords: Mapping[str, Any]) -> Any:
    try:
        return function(**keywords)
    except BadModel:
        raise
    except Exception as error:
        raise BadModel(f"{user.path}: {_name(function)} failed: {describe(error, user.path)}") from error


def _other(user: UserModel, function: Any, made: Any, library: Library, expected: str) -> BadModel:
    """Return what is said of an object of another class than expected; Keras 2 and 3 have the same names for theirs."""
    kind = type(made)
    of, hint = kind.__module__.partition(".")[0], ""
    if of in ("keras", "tf_keras") and of != library.package.__name__:
        hint = f" of {of}; what it makes is for --framework={of}"
    return BadModel(f"{user.path}: {_name(function)} returned a {kind.__name__}{hint}; expected {expected}")


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))
