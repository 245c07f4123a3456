"""Making the user's model, and calling it with symbols of what `feed` gives: that finds what does not fit together."""

from __future__ import annotations

from typing import Any

import keras

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.keras.backends.feed import given
from elasticdl.keras.building import new_model
from elasticdl.keras.internals import layers_of
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch
from elasticdl.worker.usercode import FIRST_OUTPUTS, failure, function_name


def make_model(user: UserModel, seed: int, batch: Batch, records: int) -> Any:
    """Return the user's model with all of its variables. `records`: of which the batch was made. Raises BadModel or BadData."""
    if not batch.examples:
        raise BadData(
            f"{user.path}: feed made no example of the first {records} records; the model can't be tried"
        )
    model = new_model(user, seed)
    try:
        model(keras.tree.map_structure(_symbol, batch.features), training=True)
    except BadInput:
        raise
    except Exception as error:
        raise failure(user, FIRST_OUTPUTS, error, given(batch)) from error
    # PyTorch modules inside have parameters, which Keras knows, and buffers, which it does not
    for layer in layers_of(model):
        for name, _ in layer.named_buffers() if hasattr(layer, "named_buffers") else ():
            raise BadModel(
                f"{user.path}: {function_name(user.model)} returned a model with the buffer {name!r} of a PyTorch module, which Keras does "
                "not know, so it can't be given to other workers; use a layer of Keras, or write a model file for PyTorch "
                "(--framework=torch)"
            )
    return model


def _symbol(array: Any) -> Any:
    """Return the symbol of an array of any number of examples."""
    return keras.KerasTensor((None, *array.shape[1:]), keras.backend.standardize_dtype(array.dtype))
