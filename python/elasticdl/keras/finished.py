"""The weights with which a group's job ends: what an export has that is written in a state, for what is done with that state later.

That is more than the model's variables in the state. An optimizer with `use_ema` puts its averages in their place, and callbacks have the
last word at the end of training, such as `EarlyStopping` with the best weights. So both are made again, and brought to where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticdl.cluster.cluster import ProcessName, Role
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.keras.building import built_optimizer, new_model
from elasticdl.keras.callbacks import GroupCallbacks
from elasticdl.keras.held import held
from elasticdl.keras.library import KERAS, Library, library_of
from elasticdl.keras.monitored import monitored_in_evaluations
from elasticdl.keras.serving import served
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.trained import GroupState
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelstate import ModelState

_WRITES_NOTHING = ProcessName(Role.WORKER, 1, 1)
"""Files of callbacks are begun by worker 0."""
_UNKNOWN = 0
"""How many epochs the job was to have, for callbacks."""


def finish(user: UserModel, model: Any, state: GroupState) -> None:
    """Give a model that is built the weights that an export at the end of a job in this state has.

    Raises BadModel, naming the first difference, if the state is of another model or optimizer.
    """
    library = library_of(model)
    optimizer = built_optimizer(user, model)
    callbacks = GroupCallbacks(
        user.callbacks,
        model,
        optimizer,
        _UNKNOWN,
        user.path,
        _WRITES_NOTHING,
        monitored_in_evaluations(user),
    )
    own = [*library.variables(model), *library.optimizer_variables(optimizer)]
    variables = ModelState([*held(own), *callbacks.best_weights()])
    try:
        variables.check(state.image)
        callbacks.restore(state.image.meta.get("callbacks", []))
        variables.load(state.image)
    except TransferFailed as failure:
        raise BadModel(
            f"{state.folder}: the checkpoint is of another model than that of {user.path}: {failure}; give the --model_def, "
            "--model_params, --optimizer and --callbacks of the job that wrote it"
        ) from None
    library.finalize(optimizer, model)
    if callbacks.act_at_end:
        callbacks.end()
    library.detach(model)  # callbacks had the optimizer there


def export_state(
    user: UserModel, spec: JobSpec, state: GroupState, write: Callable[[Any], None], library: Library = KERAS
) -> None:
    """Write the model of a state by `write`. Raises BadModel, and what that raises."""
    model = new_model(user, spec.seed, library)
    if not getattr(model, "inputs", None):
        raise BadModel(
            f"{user.path}: the model does not know its inputs before it is called with data, which a checkpoint does not have; make it a "
            "functional model, or evaluate and predict with the checkpoint itself"
        )
    finish(user, model, state)
    write(served(user, model))
