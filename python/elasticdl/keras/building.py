"""Making the user's model and optimizer: calls of the model file's functions, and errors that say which file and what was expected.

The first weights are a function of the job's seed, and variables have the same names in every life of every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.errors import BadData, BadModel
from elasticdl.keras.feed import Batch, FeedPipeline, show
from elasticdl.keras.library import Library, library_of
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe


def make_model(
    user: UserModel, seed: int, library: Library, pipeline: FeedPipeline, sample: Records
) -> tuple[Any, Batch, Any]:
    """Return the user's model, built, the batch of the sample, and the symbols that the model gives for one.

    Raises BadModel or BadData for what only running shows, with the user's exception as the cause.
    """
    model = new_model(user, seed, library)
    batch = pipeline(sample)
    if batch.data is None:
        raise BadData(
            f"{user.path}: feed made no example of the first {len(sample)} records; the model can't be tried"
        )
    return model, batch, _call(user, model, batch, pipeline)


def new_model(user: UserModel, seed: int, library: Library) -> Any:
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


def _call(user: UserModel, model: Any, batch: Batch, pipeline: FeedPipeline) -> Any:
    """Call the model symbolically: creates the variables of a subclassed one and finds shapes that don't fit."""
    assert batch.data is not None, "the sample has examples"
    assert pipeline.spec is not None, "feed has been traced"
    try:
        return library_of(model).try_call(model, batch.data[0], pipeline.spec[0])
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
