"""A PyTorch optimizer in the words of the parameter servers, which apply it to rows and parameters where they live.

What servers do not do is refused, never ignored. Decay that PyTorch adds to gradients is added by the worker, to those that it pushes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from elasticdl.catalog.catalog import Rule
from elasticdl.errors import BadModel

_ADAM = {"epsilon": "eps", "amsgrad": "amsgrad"}
RULES: Mapping[type[torch.optim.Optimizer], tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        torch.optim.SGD: ("torch_sgd", {"momentum": "momentum", "nesterov": "nesterov"}),
        torch.optim.Adagrad: ("torch_adagrad", {"initial_accumulator": "initial_accumulator_value", "epsilon": "eps"}),
        torch.optim.Adam: ("torch_adam", _ADAM),
        torch.optim.AdamW: ("torch_adam", _ADAM),
        torch.optim.RMSprop: (
            "torch_rmsprop",
            {"rho": "alpha", "momentum": "momentum", "epsilon": "eps", "centered": "centered"},
        ),
        torch.optim.Adadelta: ("adadelta", {"rho": "rho", "epsilon": "eps"}),
    }
)  # fmt: skip
"""Class → the servers' name, and its parameters by the keys of a group."""
_WITHOUT = {"dampening": "dampening", "maximize": "maximize"}
_OF_KERNELS = {"params", "weight_decay", "foreach", "fused", "capturable", "differentiable"}
"""Keys of a group that may differ from group to group, or mean nothing for what is computed."""


@dataclass(frozen=True, slots=True)
class Described:
    """An optimizer as servers and workers share it.

    Attributes:
        rule: what servers do.
        decays: of each parameter by `id`, whether the rule's weight decay is for it.
        added: of each parameter by `id`, what share of it is added to its gradient.
        rate_decay: the rate of a step is divided by 1 + this times the steps before.
    """

    rule: Rule
    decays: Mapping[int, bool]
    added: Mapping[int, float]
    rate_decay: float


def describe(optimizer: torch.optim.Optimizer, path: Path) -> Described:
    """Return what an optimizer does. Raises BadModel for what servers can't do.

    Only the classes of PyTorch themselves are taken: one that is derived from them may compute something else.
    """
    kind = type(optimizer)
    if kind not in RULES:
        raise BadModel(
            f"{path}: parameter servers know the optimizers {', '.join(one.__name__ for one in RULES)} of torch.optim; received "
            f"{kind.__module__}.{kind.__name__}"
        )
    first, *others = optimizer.param_groups
    for what, key in _WITHOUT.items():
        if first.get(key):
            raise BadModel(
                f"{path}: {kind.__name__}: parameter servers don't do {what}={first[key]!r}; leave it out"
            )
    for key, value in settings_of(first).items():
        if any(settings_of(other)[key] != value for other in others):
            raise BadModel(
                f"{path}: {kind.__name__}: its groups of parameters have different values of {key}, and parameter servers one for all; "
                "groups may differ in weight_decay"
            )
    name, keys = RULES[kind]
    numbers = {ours: float(first[theirs]) for ours, theirs in keys.items()}
    if name == "torch_adam":
        numbers |= {"beta_1": float(first["betas"][0]), "beta_2": float(first["betas"][1])}
    if name == "torch_sgd" and not numbers["momentum"]:
        name = "sgd"
    decay_of = {
        id(one): float(group["weight_decay"]) for group in optimizer.param_groups for one in group["params"]
    }
    is_apart = bool(first.get("decoupled_weight_decay", kind is torch.optim.AdamW))
    rate_decay = float(first.get("lr_decay", 0.0))
    if not is_apart:
        return Described(Rule(name, numbers), dict.fromkeys(decay_of, False), decay_of, rate_decay)
    apart = sorted({one for one in decay_of.values() if one})
    if len(apart) > 1:
        raise BadModel(
            f"{path}: {kind.__name__}: its groups of parameters have the weight decays {' and '.join(map(str, apart))}, and parameter "
            "servers one for all that decay; give the others 0"
        )
    decays = {one: bool(decay) for one, decay in decay_of.items()}
    rule = Rule(name, numbers, apart[0] if apart else 0.0)
    return Described(rule, decays, dict.fromkeys(decay_of, 0.0), rate_decay)


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all groups of an optimizer must have alike, its present rate included; nothing that a schedule keeps there."""
    return {
        key: float(value) if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key not in _OF_KERNELS and key not in ("initial_lr", "max_lr", "min_lr")
    }
