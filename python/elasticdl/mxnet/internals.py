"""Private names of MXNet 1.9.1, all that are used here: it has no public ones for these."""

from __future__ import annotations

from typing import Any


def take_fresh(value: Any) -> bool:
    """Tell whether a backward pass has written the gradient of a parameter's value since this was last asked."""
    fresh = bool(value._fresh_grad)
    value._fresh_grad = False
    return fresh


def is_sparse(parameter: Any) -> bool:
    """Tell whether a parameter, or its gradient, is stored by rows."""
    return bool(parameter._stype != "default" or parameter._grad_stype != "default")


def by_structure(model: Any) -> dict[str, Any]:
    """Return the parameters of a model by their places in it, as `save_parameters` names them."""
    return dict(model._collect_params_with_prefix())
