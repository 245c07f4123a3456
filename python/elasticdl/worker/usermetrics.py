"""What a model file's `eval_metrics_fn` returns: which metrics there are, of which output, under which names.

What a metric is, and how it is computed, is the framework's affair. The function is called as often as fresh metrics are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl.errors import BadModel
from elasticdl.spec.nearest import nearest
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe

LOSS = "val_loss"
"""Name of the loss, which each evaluation has."""
_EXPECTED = "expected {name: metric}, or {output: {name: metric}} for a model with several outputs"


@dataclass(frozen=True, slots=True)
class UserMetric:
    """A metric as the user wrote it.

    Attributes:
        name: `val_NAME`, or `val_OUTPUT_NAME`.
        output: that it is of; empty if the metric gets what the model gives.
        metric: of the framework, or a function.
        where: the file and the entry, for messages.
    """

    name: str
    output: str
    metric: Any = field(repr=False)
    where: str

    def output_of(self, outputs: Any) -> Any:
        """Return the metric's own of a model's outputs, which are a dict if there are several. Raises BadModel if there is none."""
        if not self.output:
            return outputs
        named = outputs if isinstance(outputs, Mapping) else {}
        if self.output not in named:
            known = sorted(named)
            raise BadModel(
                f"{self.where}: the model has no output {self.output!r}{nearest(self.output, known)}; it has "
                f"{', '.join(known) or 'one only'}"
            )
        return named[self.output]

    def labels_of(self, labels: Any) -> Any:
        """Return the labels of the metric's output if labels are a dict by outputs, and all of them otherwise."""
        if self.output and isinstance(labels, Mapping) and self.output in labels:
            return labels[self.output]
        return labels


def user_metrics(user: UserModel) -> list[UserMetric]:
    """Call the function and return fresh metrics in its order; none if the file does not define it. Raises BadModel."""
    function = user.eval_metrics_fn
    if function is None:
        return []
    shown = getattr(function, "__name__", repr(function))
    try:
        made = function()
    except Exception as error:
        raise BadModel(f"{user.path}: {shown} failed: {describe(error, user.path)}") from error
    where = f"{user.path}: {shown}()"
    found = list(_entries(made, where))
    names: dict[str, str] = {LOSS: f"the loss, which is {LOSS} always"}
    for one in found:
        if one.name in names:
            raise BadModel(f"{one.where} has the name of {names[one.name]}: {one.name}; choose another one")
        names[one.name] = one.where
    return found


def _entries(made: object, where: str) -> Iterator[UserMetric]:
    outer = _named(made, where)
    nested = [name for name, value in outer.items() if isinstance(value, Mapping)]
    if not nested:
        for name, metric in outer.items():
            yield UserMetric(f"val_{name}", "", metric, f"{where}[{name!r}]")
        return
    if flat := [name for name in outer if name not in nested]:
        raise BadModel(f"{where}: {nested[0]!r} is a dict, {flat[0]!r} is none; {_EXPECTED}")
    for output, metrics in outer.items():
        for name, metric in _named(metrics, f"{where}[{output!r}]").items():
            yield UserMetric(f"val_{output}_{name}", output, metric, f"{where}[{output!r}][{name!r}]")


def _named(made: object, where: str) -> Mapping[str, Any]:
    if not isinstance(made, Mapping):
        raise BadModel(f"{where} is a {type(made).__name__}; {_EXPECTED}")
    if not made:
        raise BadModel(
            f"{where} is an empty dict; {_EXPECTED}. To evaluate the loss alone, leave the function out"
        )
    for name in made:
        if not isinstance(name, str) or not name:
            raise BadModel(f"{where} has the key {name!r}; expected names, which are text")
    return made
