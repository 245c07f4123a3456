"""What is written of a trained model: the model itself, or what the model file makes of it for those who serve it.

With `serving_model(model)` a model file puts layers around the trained part that its `feed` applies in training, so that what is written
takes raw values. It is called when the model is built, so that what is wrong with it ends the job before its first step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from elasticdl.errors import BadModel
from elasticdl.keras.library import library_of
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


def served(user: UserModel, model: Any) -> Any:
    """Return the model that is written in place of `model`, which is built, with the same weights. Raises BadModel."""
    if user.serving_model is None:
        return model
    try:
        with _no_rows():
            made = user.serving_model(model)
    except BadModel:
        raise
    except Exception as error:
        raise BadModel(f"{user.path}: serving_model failed: {describe(error, user.path)}") from error
    package = library_of(model).package
    if not isinstance(made, package.Model):
        raise BadModel(
            f"{user.path}: serving_model returned a {type(made).__name__}; expected a {package.__name__}.Model"
        )
    known = {id(variable) for variable in made.variables}
    if any(id(variable) not in known for variable in model.variables):
        raise BadModel(
            f"{user.path}: serving_model returned a model without all weights of the one it was given; call that one in it"
        )
    return made


def _no_rows() -> AbstractContextManager[object]:
    """Return what lets layers of tables be called without rows, which are put back in what is written; only TensorFlow has such layers."""
    if keras.backend.backend() != "tensorflow":
        return nullcontext()
    from elasticdl.keras.embedding import Recorded, looking_up

    return looking_up(Recorded())
