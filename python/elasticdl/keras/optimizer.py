"""A Keras optimizer in the words of the parameter server, which applies it to rows and variables where they live.

What the server does not do is refused, never ignored: a schedule's rate travels with each push, and clipping is the worker's affair,
before the push.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from elasticdl.catalog.catalog import Rule
from elasticdl.errors import BadModel

_ADAM = {"beta_1": "beta_1", "beta_2": "beta_2", "epsilon": "epsilon", "amsgrad": "amsgrad"}
_RULES: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "SGD": ("sgd", {"momentum": "momentum", "nesterov": "nesterov"}),
        "Adagrad": ("adagrad", {"initial_accumulator": "initial_accumulator_value", "epsilon": "epsilon"}),
        "Adam": ("adam", _ADAM),
        "AdamW": ("adam", _ADAM),
        "RMSprop": (
            "rmsprop",
            {"rho": "rho", "momentum": "momentum", "epsilon": "epsilon", "centered": "centered"},
        ),
        "Adadelta": ("adadelta", {"rho": "rho", "epsilon": "epsilon"}),
        "Ftrl": (
            "ftrl",
            {
                "learning_rate_power": "learning_rate_power",
                "initial_accumulator": "initial_accumulator_value",
                "l1": "l1_regularization_strength",
                "l2": "l2_regularization_strength",
                "l2_shrinkage": "l2_shrinkage_regularization_strength",
                "beta": "beta",
            },
        ),
    }
)
"""Class of Keras → the server's name, and its parameters by the class's attributes."""
_LEGACY = ("SGD", "Adam")
"""Legacy classes of Keras 2 that compute what those of the same name compute today."""


def describe(optimizer: Any) -> Rule:
    """Return a Keras optimizer in the server's words. Raises BadModel for what a server can't do.

    Only the classes of Keras themselves are taken: one that is derived from them may compute something else.
    """
    kind = type(optimizer)
    known = _RULES.get(kind.__name__) if kind.__module__.partition(".")[0] in ("keras", "tf_keras") else None
    if ".legacy." in kind.__module__ and kind.__name__ not in _LEGACY:
        raise BadModel(
            f"of the legacy optimizers parameter servers know {' and '.join(_LEGACY)}; received {kind.__name__}: use that of "
            "tf_keras.optimizers, whose epsilon is in another place of the formula"
        )
    if known is None:
        names = ", ".join(_RULES)
        raise BadModel(
            f"parameter servers know the Keras optimizers {names}; received {kind.__module__}.{kind.__name__}"
        )
    if getattr(optimizer, "use_ema", False):
        raise BadModel(
            f"{kind.__name__}: use_ema=True keeps averages of all weights, which parameter servers do not"
        )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise BadModel(f"{kind.__name__}: gradient_accumulation_steps is not for parameter servers")
    if getattr(optimizer, "loss_scale_factor", None):
        raise BadModel(
            f"{kind.__name__}: loss_scale_factor is not for parameter servers, which compute in float32"
        )
    name, attributes = known
    numbers = {key: float(getattr(optimizer, attribute)) for key, attribute in attributes.items()}
    return Rule(name, numbers, float(getattr(optimizer, "weight_decay", None) or 0.0))
