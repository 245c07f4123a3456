"""Which model is meant by a target, and what attributes say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from elasticdl.errors import BadSetting
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.columns import Value
from elasticdl.tabular.features import Network

KINDS = ("dnn", "linear", "wide_deep", "deepfm", "dcn")
_NAMES = {
    "dnn": "dnn",
    "elasticdlkeras": "dnn",
    "linear": "linear",
    "widedeep": "wide_deep",
    "wideanddeep": "wide_deep",
    "dnnlinearcombined": "wide_deep",
    "deepfm": "deepfm",
    "dcn": "dcn",
}
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "elu", "selu", "sigmoid")
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "ftrl", "nadam", "adamax", "adadelta")
OPTIMIZER_ARGUMENTS = (
    "learning_rate",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "momentum",
    "nesterov",
    "beta_1",
    "beta_2",
    "epsilon",
    "rho",
    "amsgrad",
    "initial_accumulator_value",
    "l1_regularization_strength",
    "l2_regularization_strength",
)
_CLASSIFIES = ("accuracy", "auc", "precision", "recall")
_REGRESSES = ("mean_absolute_error", "mean_squared_error", "root_mean_squared_error")
METRICS = (*_CLASSIFIES, *_REGRESSES)
MODEL_ATTRIBUTES = ("hidden_units", "activation", "dropout", "optimizer")
"""What `model.NAME` may set."""


class Task(StrEnum):
    """What is predicted."""

    CLASSIFICATION = "classifier"
    REGRESSION = "regressor"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The model that was asked for.

    Attributes:
        network: the trained part.
        task: None: the label decides.
    """

    network: Network
    task: Task | None


def target_of(name: str | None) -> tuple[str, Task | None] | None:
    """Return the kind of network that a target names, and its task; None if it names none of ours."""
    if name is None:
        return "dnn", None
    plain = name.replace("_", "").lower()
    task = next((one for one in Task if plain.endswith(one.value)), None)
    kind = _NAMES.get(plain.removesuffix(task.value) if task else plain)
    return None if kind is None else (kind, task)


def network_of(target: str | None, attributes: Mapping[str, Value]) -> Wanted:
    """Return the model that is asked for. Raises BadSetting for values that mean nothing."""
    found = target_of(target)
    if found is None:
        raise BadSetting(
            f"there is no model {target!r}{nearest(str(target), KINDS)}; there are {', '.join(KINDS)}, with _classifier or _regressor"
        )
    kind, task = found
    units = attributes.get("model.hidden_units", (128, 64))
    if type(units) is int:
        units = (units,)
    if not isinstance(units, tuple) or not units or not all(type(one) is int and one > 0 for one in units):
        raise BadSetting(
            f"model.hidden_units is a list of numbers of 1 or more, such as [128, 64]; got {_shown(units)}"
        )
    dropout = attributes.get("model.dropout", 0.0)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise BadSetting(f"model.dropout is a number from 0 to less than 1; got {_shown(dropout)}")
    metrics = attributes.get("validation.metrics", ())
    names = (metrics,) if isinstance(metrics, str) else metrics
    if not isinstance(names, tuple):
        raise BadSetting(f"validation.metrics is a list of names; got {_shown(metrics)}")
    for name in names:
        _one_of("validation.metrics", name, METRICS)
    network = Network(
        kind,
        tuple(int(str(one)) for one in units),
        _one_of("model.activation", attributes.get("model.activation", "relu"), ACTIVATIONS),
        float(dropout),
        _one_of("model.optimizer", attributes.get("model.optimizer", "adam"), OPTIMIZERS),
        _arguments(attributes),
        tuple(str(name).lower() for name in names),
    )
    return Wanted(network, task)


def _arguments(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the optimizer's constructor gets."""
    found: dict[str, Value] = {}
    for key, value in attributes.items():
        prefix, _, name = key.partition(".")
        if prefix != "optimizer":
            continue
        if name not in OPTIMIZER_ARGUMENTS:
            raise BadSetting(
                f"{key} is unknown{nearest(name, OPTIMIZER_ARGUMENTS)}; there are {', '.join(OPTIMIZER_ARGUMENTS)}"
            )
        if not isinstance(value, int | float):
            raise BadSetting(f"{key} is a number, TRUE or FALSE; got {_shown(value)}")
        if name == "learning_rate" and (isinstance(value, bool) or value <= 0):
            raise BadSetting(f"{key} is a number above 0; got {_shown(value)}")
        # Keras takes no whole numbers for some of them
        found[name] = value if isinstance(value, bool) else float(value)
    return found


def _one_of(name: str, value: Value, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value.lower() not in known:
        hint = nearest(str(value).lower(), known)
        raise BadSetting(f"{name}: {_shown(value)} is unknown{hint}; there are {', '.join(known)}")
    return value.lower()


def _shown(value: Value) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else repr(value)
