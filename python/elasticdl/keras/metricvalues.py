"""The loss and the user's metrics: tried on two chunks, updated chunk by chunk without a state of their own, and their values.

Metrics are Keras objects, but their variables hold nothing from call to call: states go in and come out. Whether the states of tasks may
be added is known of the classes of Keras (all of them add, from zero). Of a class of the user it is found out by trying; one that does
not add needs `merge_state`, which gets the states of the tasks one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import TYPES, Metric, MetricCatalog, StateArray
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.keras.held import array_of
from elasticdl.keras.library import KERAS, Library, library_of
from elasticdl.keras.loss import may_be, shape_of
from elasticdl.keras.shown import show
from elasticdl.spec.nearest import nearest
from elasticdl.worker.contract.evaluation import MetricValue
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.usermetrics import LOSS, UserMetric, user_metrics

Arrays = list[npt.NDArray[Any]]

_VARIABLES = (
    "keep what the values depend on in variables that add_variable makes in __init__, begin at zero and are added to, or define "
    "merge_state(metrics), which merges the states of other objects of the class into its own"
)
"""What mends a metric whose states can't be combined."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What metrics see of a chunk.

    Attributes:
        labels: what `feed` gives.
        predictions: what the model gives.
        weights: of the examples, or None.
        loss: mean over the examples, layers' own losses included; a float64 scalar.
        examples: n, a scalar of int32.
    """

    labels: Any
    predictions: Any
    weights: Any
    loss: Any
    examples: Any


class PerExample:
    """A user's function (labels, predictions), with one value for each example whatever it returns: a scalar counts for all of them."""

    def __init__(self, function: Callable[[Any, Any], Any], where: str) -> None:
        self._function, self._where = function, where
        self.is_scalar = False
        """Whether the last call returned a scalar."""

    def __call__(self, labels: Any, predictions: Any) -> Any:
        """Return a tensor whose first dimension is the examples. Raises BadModel if that is not what the function returns."""
        returned = self._function(labels, predictions)
        try:
            values = keras.ops.convert_to_tensor(returned)
        except (TypeError, ValueError, RuntimeError):
            values = None
        if values is None or not _is_number(values):
            raise BadModel(
                f"{self._where}: expected one value per example, or a scalar, received {type(returned).__name__}"
            )
        output = keras.tree.flatten(predictions)[0]
        found, wanted = shape_of(values), shape_of(output)
        self.is_scalar = found == ()
        if self.is_scalar:
            return keras.ops.broadcast_to(values, keras.ops.shape(output)[:1])
        if found and wanted and not may_be(found[0], wanted[0]):
            raise BadModel(
                f"{self._where}: expected one value per example (shape {list(wanted[:1])}), or a scalar, received the shape {list(found)}"
            )
        return values


@dataclass(frozen=True, slots=True)
class _Entry:
    """One metric.

    Attributes:
        user: its name, output and place.
        metric: a Keras object.
        function: that it averages, if it is of a function.
    """

    user: UserMetric
    metric: Any
    function: PerExample | None = None

    def update(self, seen: Seen) -> None:
        """Update the object's variables, or those of the stateless scope."""
        arguments, keywords = self._arguments(seen)
        self.metric.update_state(*arguments, **keywords)

    def updated(self, state: Sequence[Any], seen: Seen) -> list[Any]:
        """Return a state after a chunk; the object's variables stay as they are."""
        arguments, keywords = self._arguments(seen)
        return library_of(self.metric).updated(self.metric, state, arguments, keywords)

    def variables(self) -> list[Any]:
        """Return the object's variables."""
        return library_of(self.metric).metric_variables(self.metric)

    def _arguments(self, seen: Seen) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.user.name == LOSS:
            return (seen.loss,), {"sample_weight": seen.examples}
        weights = self.weights(seen)
        arguments = self._of_output(seen.labels), self._of_output(seen.predictions)
        return arguments, {} if weights is None else {"sample_weight": weights}

    def weights(self, seen: Seen) -> Any:
        """Return the weights of the examples for this metric, or None."""
        return self._of_output(seen.weights)

    def _of_output(self, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given  # the same for all outputs
        if self.user.output:
            return given.get(self.user.output)
        return next(iter(given.values())) if len(given) == 1 else given

    def state(self) -> Arrays:
        """Return a copy of the object's variables."""
        return [np.array(array_of(variable.value)) for variable in self.variables()]

    def value_of(self, state: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the values of a state by name."""
        self.assign(state)
        return self.values()

    def assign(self, state: Sequence[npt.NDArray[Any]]) -> None:
        """Replace the object's variables. Raises BadModel for whole numbers that don't fit."""
        for variable, value in zip(self.variables(), state, strict=True):
            kind = keras.backend.standardize_dtype(variable.dtype)
            if value.dtype.kind in "iu" and keras.backend.is_int_dtype(kind) and value.size:
                limits = np.iinfo(kind)
                if value.min() < limits.min or value.max() > limits.max:
                    raise BadModel(
                        f"{self.user.where}: its sums don't fit {kind}; give the metric another dtype"
                    )
            variable.assign(keras.ops.cast(value, kind))

    def values(self) -> dict[str, MetricValue]:
        """Return the values of the object's variables by name."""
        result = self.metric.result()
        if isinstance(result, Mapping):
            return {
                f"{self.user.name}_{key}": _plain(value, self.user.where) for key, value in result.items()
            }
        return {self.user.name: _plain(result, self.user.where)}


class EvaluationMetrics:
    """The loss and the metrics of one model. All calls from one thread."""

    catalog: MetricCatalog
    """Known once they have been tried."""

    def __init__(self, user: UserModel, library: Library = KERAS) -> None:
        """`library`: of the model, and so of its metrics."""
        self._user, self._library, self._keras = user, library, library.package

    def try_out(self, first: Seen, second: Seen) -> None:
        """Find out what the metrics keep and whether that may be added, on two chunks of different sizes.

        Raises BadModel for what can't be a metric of this model, or not of an evaluation that is cut into tasks.
        """
        self._entries, self._parts, both, fresh = (self._made() for _ in range(4))
        tried, names = list[_Tried](), dict[str, str]()
        for entries in zip(self._entries, self._parts, both, fresh, strict=True):
            user = entries[0].user
            _check_output(user, first)
            try:
                found = _try_out(entries, first, second)
            except BadInput:
                raise
            except Exception as error:
                raise self._failed(user, first, error) from error
            for name in found.names:
                if name in names:
                    raise BadModel(
                        f"{user.where} has the value {name}, as {names[name]} has; choose another name"
                    )
                names[name] = user.where
            tried.append(found)
        self._begin = [found.begin for found in tried]
        self._flat_begin = [keras.ops.convert_to_tensor(value) for state in self._begin for value in state]
        self.catalog = MetricCatalog(
            tuple(
                Metric(entry.user.name, entry.user.output, _described(entry.metric), found.adds)
                for entry, found in zip(self._entries, tried, strict=True)
            )
        )
        self.catalog.check_size(str(self._user.path))

    def begin(self) -> list[Any]:
        """Return the state in which each task begins, flat."""
        return list(self._flat_begin)

    def updated(self, states: Sequence[Any], seen: Seen) -> list[Any]:
        """Return the flat states after a chunk; may be traced."""
        found: list[Any] = []
        rest = iter(states)
        for entry, begin in zip(self._entries, self._begin, strict=True):
            try:
                found += entry.updated([next(rest) for _ in begin], seen)
            except BadInput:
                raise
            except Exception as error:
                raise self._failed(entry.user, seen, error) from error
        return [keras.ops.convert_to_tensor(value) for value in found]

    def state_of(self, states: Sequence[Any]) -> Arrays:
        """Return flat states as the catalog describes them."""
        described = self.catalog.task_arrays()
        return [
            np.array(array_of(value), array.dtype) for value, array in zip(states, described, strict=True)
        ]

    def values(self, combined: Sequence[npt.NDArray[Any]]) -> dict[str, MetricValue]:
        """Return the values of all tasks by name. Raises BadData if they had no example, BadModel for a metric that fails."""
        merging = None if all(one.adds for one in self.catalog.metrics) else self._made()
        rest, found = iter(combined), dict[str, MetricValue]()
        for place, (entry, described) in enumerate(zip(self._entries, self.catalog.metrics, strict=True)):
            state = [next(rest) for _ in described.state]
            if entry.user.name == LOSS and not state[1]:
                raise BadData(f"{self._user.path}: feed made no example of the evaluation data")
            try:
                if described.adds:
                    found |= entry.value_of(state)
                else:
                    assert merging is not None, "made for those that don't add"
                    tasks = zip(*state, strict=True)
                    found |= _merged(merging[place], self._parts[place], tasks)
            except BadInput:
                raise
            except Exception as error:
                raise BadModel(f"{entry.user.where} failed: {describe(error, self._user.path)}") from error
        return found

    def _made(self) -> list[_Entry]:
        """Return fresh metrics."""
        loss = self._keras.metrics.Mean(LOSS, dtype=widest())
        entries = [_Entry(UserMetric(LOSS, "", loss, f"{self._user.path}: the loss"), loss)]
        entries += [self._entry(one) for one in user_metrics(self._user)]
        of_object: dict[int, str] = {}
        for entry in entries:
            where = of_object.setdefault(id(entry.metric), entry.user.where)
            if where != entry.user.where:
                raise BadModel(f"{entry.user.where} and {where} are the same object; make one for each")
        return entries

    def _entry(self, one: UserMetric) -> _Entry:
        metric = one.metric
        if isinstance(metric, type) and issubclass(metric, self._keras.metrics.Metric):
            try:
                metric = metric()
            except Exception as error:
                raise BadModel(f"{one.where} failed: {describe(error, self._user.path)}") from error
        if isinstance(metric, self._keras.metrics.Metric):
            return _Entry(one, metric)
        if not callable(metric):
            raise BadModel(
                f"{one.where}: expected a Keras metric or a function (labels, predictions), received {metric!r:.100}"
            )
        function = PerExample(metric, one.where)
        return _Entry(one, self._library.averaging(function, one.name, widest()), function)

    def _failed(self, one: UserMetric, seen: Seen, error: Exception) -> BadModel:
        text = f"{one.where} failed: {describe(error, self._user.path)}\n"
        text += f"labels are {show(_specs(seen.labels))}; the model gives {show(_specs(seen.predictions))}"
        if not one.output and isinstance(seen.predictions, Mapping) and len(seen.predictions) > 1:
            text += "; for a model with several outputs write {output: {name: metric}}"
        return BadModel(text)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What trying a metric has shown.

    Attributes:
        names: of its values.
        begin: the state in which a task begins.
        adds: states of tasks may be added.
    """

    names: Sequence[str]
    begin: Arrays
    adds: bool


def _try_out(entries: tuple[_Entry, _Entry, _Entry, _Entry], first: Seen, second: Seen) -> _Tried:
    """Try four fresh objects of a metric: two see a chunk each, one sees both, one sees none.

    Raises BadModel, and what the metric raises.
    """
    one, other, both, fresh = entries
    where, kind = one.user.where, type(one.metric)
    if len({id(entry.metric) for entry in entries}) < len(entries):
        raise BadModel(
            f"{where} is the same object each time; make the metrics inside of the function: each evaluation has fresh ones"
        )
    weighted = one.weights(first) is not None
    if weighted:
        _check_weights(one)
    one.update(first)
    other.update(second)
    both.update(first)
    both.update(second)
    if weighted and one.function is not None and one.function.is_scalar:
        raise BadModel(
            f"{where}: feed gives sample weights, and the function returns a scalar; return one value per example"
        )
    if not one.variables():
        raise BadModel(f"{where} keeps nothing in variables, so tasks can't be combined; {_VARIABLES}")
    states, expected = [one.state(), other.state()], both.values()
    begin = [np.zeros_like(value) for value in states[0]]
    if one.function is not None or kind.__module__.partition(".")[0] in ("keras", "tf_keras"):
        return _Tried(list(expected), begin, True)
    reason = _why_not_added(one, other, both, first, expected)
    if not reason:
        return _Tried(list(expected), begin, True)
    if not hasattr(one.metric, "merge_state"):
        raise BadModel(f"{where}: the states of a {kind.__name__} can't be added: {reason}; {_VARIABLES}")
    begin = fresh.state()
    if len(begin) != len(states[0]):
        raise BadModel(f"{where}: a metric with merge_state has to make its variables in __init__")
    if not _same(_merged(fresh, other, states), expected):
        raise BadModel(
            f"{where}: merge_state of a {kind.__name__} makes another value of two chunks than one object that sees both; it has to merge "
            "the variables of the objects that it is given into its own, and nothing else may matter"
        )
    return _Tried(list(expected), begin, False)


def _why_not_added(
    one: _Entry, other: _Entry, both: _Entry, first: Seen, expected: Mapping[str, MetricValue]
) -> str:
    """Return what is different if the states of two chunks are added; nothing if that is the state of both."""
    states = one.state(), other.state()
    added, whole = [mine + theirs for mine, theirs in zip(*states, strict=True)], both.state()
    zeros = [keras.ops.convert_to_tensor(np.zeros_like(value)) for value in whole]
    updated = [array_of(value) for value in both.updated(zeros, first)]
    if not _alike(updated, states[0]):
        return "they don't begin at zero"
    if not _alike(added, whole):
        return "the sum of those of two chunks is not that of both"
    # each object has seen another chunk, so what it keeps beside its variables shows
    if not all(_same(entry.value_of(added), expected) for entry in (one, other)):
        return "the value depends on something else"
    return ""


def _merged(
    into: _Entry, part: _Entry, states: Iterable[Sequence[npt.NDArray[Any]]]
) -> dict[str, MetricValue]:
    """Return the values of the states of tasks, merged into a fresh object in their order."""
    for state in states:
        part.assign(state)
        into.metric.merge_state([part.metric])
    return into.values()


def _check_output(one: UserMetric, seen: Seen) -> None:
    """Raise BadModel if there is no output or no label of the name that a metric is for."""
    if not one.output:
        return
    if not isinstance(seen.predictions, Mapping):
        raise BadModel(
            f"{one.where}: the model gives {show(_specs(seen.predictions))}, and no dict of outputs by name; write {{name: metric}}, or "
            "return a dict"
        )
    for given, what in ((seen.predictions, "outputs of the model"), (seen.labels, "labels")):
        if isinstance(given, Mapping) and one.output not in given:
            known = sorted(map(str, given))
            raise BadModel(
                f"{one.where}: {one.output!r} is not among the {what}, which are {', '.join(known)}{nearest(one.output, known)}"
            )


def _check_weights(one: _Entry) -> None:
    """Raise BadModel if a metric does not take the sample weights that `feed` gives."""
    parameters = inspect.signature(one.metric.update_state).parameters.values()
    if not any(
        part.name == "sample_weight" or part.kind is inspect.Parameter.VAR_KEYWORD for part in parameters
    ):
        raise BadModel(
            f"{one.user.where}: feed gives sample weights, and update_state of a {type(one.metric).__name__} does not take them; give it a "
            "third parameter sample_weight=None"
        )


def _described(metric: Any) -> tuple[StateArray, ...]:
    found = []
    for variable in library_of(metric).metric_variables(metric):
        kind = variable.dtype
        found.append(
            StateArray(variable.name, tuple(variable.shape), kind if kind in TYPES else "float32")
        )  # bfloat16 is not of NumPy
    return tuple(found)


def _alike(one: Arrays, other: Arrays) -> bool:
    """Tell whether states are equal but for rounding."""
    for mine, theirs in zip(one, other, strict=True):
        first, second = mine.astype(np.float64), theirs.astype(np.float64)
        size = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
        if not np.allclose(first, second, rtol=1e-4, atol=1e-5 * size, equal_nan=True):
            return False
    return True


def _same(one: Mapping[str, MetricValue], other: Mapping[str, MetricValue]) -> bool:
    """Tell whether values are equal but for rounding, which small differences make larger."""
    if one.keys() != other.keys():
        return False
    pairs = [(np.asarray(one[name]), np.asarray(other[name])) for name in one]
    return all(
        mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=1e-3, atol=1e-5, equal_nan=True)
        for mine, theirs in pairs
    )


def _plain(value: Any, where: str) -> MetricValue:
    """Return a number or numbers as Python has them. Raises BadModel for anything else."""
    try:
        tensor = keras.ops.convert_to_tensor(value)
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
            tensor = keras.ops.cast(tensor, widest())  # NumPy lacks bfloat16
        numbers = np.asarray(array_of(tensor))
        found: MetricValue = numbers.astype(np.float64).tolist()
    except (TypeError, ValueError):
        raise BadModel(
            f"{where}: expected a number, numbers or a dict of them as the result, received {value!r:.100}"
        ) from None
    return found


def _specs(structure: Any) -> Any:
    return keras.tree.map_structure(
        lambda part: keras.KerasTensor((None, *part.shape[1:]), keras.backend.standardize_dtype(part.dtype)),
        structure,
    )


def widest() -> str:
    """Return the type in which sums are kept: JAX has float64 only if it is asked for."""
    made = keras.ops.convert_to_tensor(np.zeros((), np.float64))
    return str(keras.backend.standardize_dtype(made.dtype))


def _is_number(tensor: Any) -> bool:
    kind = keras.backend.standardize_dtype(tensor.dtype)
    return bool(keras.backend.is_float_dtype(kind) or keras.backend.is_int_dtype(kind) or kind == "bool")
