"""A Keras optimizer in the words of the parameter server, which applies it to rows and variables where they live.

What the server does not do is refused, never ignored: a schedule's rate travels with each push, and clipping is the worker's affair,
before the push.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from elasticdl.errors import BadModel
from elasticdl.ps.catalog import Rule


def _sgd(optimizer: Any) -> dict[str, float]:
    return {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}


def _adagrad(optimizer: Any) -> dict[str, float]:
    return {
        "initial_accumulator": optimizer.initial_accumulator_value,
        "epsilon": optimizer.epsilon,
    }


def _adam(optimizer: Any) -> dict[str, float]:
    return {
        "beta_1": optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "epsilon": optimizer.epsilon,
        "amsgrad": optimizer.amsgrad,
    }


def _rmsprop(optimizer: Any) -> dict[str, float]:
    return {
        "rho": optimizer.rho,
        "momentum": optimizer.momentum,
        "epsilon": optimizer.epsilon,
        "centered": optimizer.centered,
    }


def _adadelta(optimizer: Any) -> dict[str, float]:
    return {"rho": optimizer.rho, "epsilon": optimizer.epsilon}


def _ftrl(optimizer: Any) -> dict[str, float]:
    return {
        "learning_rate_power": optimizer.learning_rate_power,
        "initial_accumulator": optimizer.initial_accumulator_value,
        "l1": optimizer.l1_regularization_strength,
        "l2": optimizer.l2_regularization_strength,
        "l2_shrinkage": optimizer.l2_shrinkage_regularization_strength,
        "beta": optimizer.beta,
    }


_RULES: Mapping[str, tuple[str, Callable[[Any], dict[str, float]]]] = MappingProxyType(
    {
        "SGD": ("sgd", _sgd),
        "Adagrad": ("adagrad", _adagrad),
        "Adam": ("adam", _adam),
        "AdamW": ("adam", _adam),
        "RMSprop": ("rmsprop", _rmsprop),
        "Adadelta": ("adadelta", _adadelta),
        "Ftrl": ("ftrl", _ftrl),
    }
)


def describe(optimizer: Any) -> Rule:
    """Return a Keras optimizer in the server's words. Raises BadModel for what a server can't do.

    Only the classes of Keras themselves are taken: one that is derived from them may compute something else.
    """
    kind = type(optimizer)
    known = _RULES.get(kind.__name__) if kind.__module__.startswith("keras.") else None
    if known is None:
        names = ", ".join(_RULES)
        raise BadModel(
            f"parameter servers know the Keras optimizers {names}; received {kind.__module__}.{kind.__name__}"
        )
    if optimizer.use_ema:
        raise BadModel(
            f"{kind.__name__}: use_ema=True keeps averages of all weights, which parameter servers do not"
        )
    if optimizer.gradient_accumulation_steps:
        raise BadModel(
            f"{kind.__name__}: gradient_accumulation_steps is not for parameter servers; take --grads_to_wait"
        )
    if optimizer.loss_scale_factor:
        raise BadModel(
            f"{kind.__name__}: loss_scale_factor is not for parameter servers, which compute in float32"
        )
    name, parameters = known
    numbers = {key: float(value) for key, value in parameters(optimizer).items()}
    return Rule(name, numbers, float(optimizer.weight_decay or 0.0))
