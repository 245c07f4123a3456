"""Making the user's model and optimizer: calls of the model file's functions, and errors that say which file and what was expected.

The first weights are a function of the job's seed, and variables have the same names in every life of every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from elasticdl.errors import BadData, BadModel
from elasticdl.keras.feed import Batch, FeedPipeline, show
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


def make_model(user: UserModel, seed: int, pipeline: FeedPipeline, sample: Records) -> tuple[Any, Batch, Any]:
    """Return the user's model, built, the batch of the sample, and the symbols that the model gives for one.

    Raises BadModel or BadData for what only running shows, with the user's exception as the cause.
    """
    model = new_model(user, seed)
    batch = pipeline(sample)
    if batch.data is None:
        raise BadData(
            f"{user.path}: feed made no example of the first {len(sample)} records; the model can't be tried"
        )
    return model, batch, _call(user, model, batch, pipeline)


def new_model(user: UserModel, seed: int) -> Any:
    """Return what the user's model function returns; a subclassed model has no variables yet. Raises BadModel."""
    keras.utils.clear_session(free_memory=False)
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


def _call(user: UserModel, model: Any, batch: Batch, pipeline: FeedPipeline) -> Any:
    """Call the model symbolically: creates the variables of a subclassed one and finds shapes that don't fit."""
    assert batch.data is not None, "the sample has examples"
    assert pipeline.spec is not None, "feed has been traced"
    symbols = tf.nest.map_structure(_symbol, batch.data[0], pipeline.spec[0])
    try:
        return model(symbols, training=True)
    except BadModel:
        raise
    except Exception as error:
        received = show(pipeline.spec[0] if pipeline.spec else None)
        expected = (
            show(model.input) if getattr(model, "inputs", None) else "what the model's call was written for"
        )
        raise BadData(
            f"{user.path}: the model can't take what feed gives (expected features {expected}, received {received}): "
            f"{describe(error, user.path)}\nfeed has to return {pipeline.expected}; None stands for the examples of a batch"
        ) from error


def _symbol(sample: Any, spec: Any) -> Any:
    """Return the symbol of a tensor of any number of examples."""
    sparse, ragged = isinstance(sample, tf.SparseTensor), isinstance(sample, tf.RaggedTensor)
    # other sizes than that of the first are a matter of chance for what is not dense
    shape = spec.shape if sparse or ragged else sample.shape
    return keras.KerasTensor((None, *shape[1:]), sample.dtype.name, sparse=sparse, ragged=ragged)
