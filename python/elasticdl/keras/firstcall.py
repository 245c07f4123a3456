"""Making the user's model with TensorFlow, and calling it with symbols of what `feed` gives: that finds what does not fit together."""

from __future__ import annotations

from typing import Any

import keras

from elasticdl.errors import BadData, BadModel
from elasticdl.keras.building import new_model
from elasticdl.keras.feed import Batch, FeedPipeline
from elasticdl.keras.library import Library, library_of
from elasticdl.keras.shown import inputs_of, show
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
    if len(batch.data) > 1 and any(
        0 in getattr(label, "shape", ())[1:] for label in keras.tree.flatten(batch.data[1])
    ):
        raise BadData(
            f"{user.path}: feed makes labels without values, {show(batch.data[1])} of the first {len(sample)} records; does it take a "
            "column that the records do not have?"
        )
    return model, batch, _call(user, model, batch, pipeline)


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
        inputs = inputs_of(model)
        expected = "what the model's call was written for" if inputs is None else show(inputs)
        raise BadData(
            f"{user.path}: the model can't take what feed gives (expected features {expected}, received {received}): "
            f"{describe(error, user.path)}\nfeed has to return {pipeline.expected}; None stands for the examples of a batch"
        ) from error
