"""The names that callbacks may monitor at the end of an epoch, and which way each of them is better."""

from __future__ import annotations

from elasticdl.keras.internals import direction_of
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.usermetrics import LOSS, user_metrics

LOSS_ALONE = {"loss": "min"}


def monitored(user: UserModel, spec: JobSpec) -> dict[str, str]:
    """Return names with `min`, `max`, or nothing where that can't be told. Raises BadModel for what are no metrics."""
    if not (spec.validation_data and spec.evaluate_at_epoch_end):
        return LOSS_ALONE
    return monitored_in_evaluations(user)


def monitored_at_barriers(user: UserModel, spec: JobSpec) -> dict[str, str]:
    """Return what `monitored` does with parameter servers, where nobody knows the loss of all minibatches."""
    return {name: way for name, way in monitored(user, spec).items() if name not in LOSS_ALONE}


def monitored_in_evaluations(user: UserModel) -> dict[str, str]:
    """Return the names that there are if the model is evaluated at the end of each epoch. Raises BadModel for what are no metrics."""
    own = {one.name: direction_of(one.metric) for one in user_metrics(user)}
    return {**LOSS_ALONE, LOSS: "min", **own}
