"""What this package uses of Keras beyond its public names: all of it is here, so that one test finds out when a release changes it.

Each function says why the public names are not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.random.seed_generator import global_seed_generator


def layers_of(model: Any) -> list[Any]:
    """Return the model and all layers inside it, in a fixed order: `Model.layers` has only the outermost."""
    return list(model._flatten_layers())


def seed_states(model: Any) -> list[Any]:
    """Return the states of the seed generators that a step may draw from, in a fixed order: no public name lists them."""
    # layers that name no generator draw from the process's own one; made here, because a traced function can't make variables
    shared = global_seed_generator().state
    found: dict[int, Any] = {id(shared): shared}
    for layer in layers_of(model):
        for generator in layer._seed_generators:
            found[id(generator.state)] = generator.state
    return list(found.values())


def set_value(variable: Any, value: Any) -> None:
    """Give a variable on JAX an array that a compiled update has returned: `assign` looks at it first, once for each variable and step."""
    variable._value = value


def clear_losses(model: Any) -> None:
    """Forget the losses that `add_loss` collected in the last call, as `Model.fit` does before each; they would be counted again."""
    model._clear_losses()


def clip(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """Return gradients as the optimizer's clipping leaves them: in public it clips only on the way to its own variables."""
    clipped: list[Any] = optimizer._clip_gradients(gradients)
    return clipped


def decays(optimizer: Any) -> Callable[[Any], bool]:
    """Return what tells whether weight decay is for a variable: no public name has what `exclude_from_weight_decay` has excluded."""
    decides: Callable[[Any], bool] = optimizer._use_weight_decay
    return decides


def follows_schedule(optimizer: Any) -> bool:
    """Tell whether the learning rate is a schedule: the public `learning_rate` is its value at the present step already."""
    return isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)


def direction_of(metric: Any) -> str:
    """Return `max` or `min`, the way that is better of a metric, empty if it does not say: callbacks of mode `auto` look there, too."""
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", None) or "", "")


def profiles(tensorboard: Any) -> bool:
    """Tell whether the callback TensorBoard profiles: no public name has its `profile_batch`."""
    return bool(tensorboard._should_trace)


def begin_counting(tensorboard: Any, batches: int) -> None:
    """Have the callback TensorBoard number batches after so many: it begins with 0, also where it continues."""
    tensorboard._global_train_batch = batches


def flush_events(tensorboard: Any) -> None:
    """Write what the callback TensorBoard has collected to its files: in public it does so at the end of training only."""
    for writer in tensorboard._writers.values():
        writer.flush()
