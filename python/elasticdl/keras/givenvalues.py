"""Values in place of those of `tf.Variable`s while a model of Keras 2 is traced: what `keras.StatelessScope` is for Keras 3.

Layers of Keras 2 hold TensorFlow's variables, and read and assign them by their methods. Those look here first, so a call of the model is a
function of the values that it is given, and what it assigns goes nowhere. Only tracing is covered: outside of graphs TensorFlow reads
variables without asking their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.ops import resource_variable_ops
from tf_keras.src import backend  # the public module has no RandomGenerator

from elasticdl.errors import BadModel

_given: ContextVar[GivenValues | None] = ContextVar("given values", default=None)


class GivenValues:
    """Entered, it gives variables values, and generators of random numbers seeds."""

    def __init__(self, given: Iterable[tuple[Any, Any]]) -> None:
        """`given`: variables as `keras2.Weight` with tensors, and `RandomGenerator`s of Keras with seeds of shape [2]."""
        self._values: dict[int, Any] = {}
        self._seeds: list[tuple[Any, Any]] = []
        for target, value in given:
            if isinstance(target, backend.RandomGenerator):
                self._seeds.append((target, value))
            else:
                self._values[id(target.variable)] = value
        self._graph = tf.compat.v1.get_default_graph()
        self._left: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable, None if it was given none."""
        return self._values.get(id(variable.variable))

    def find(self, variable: Any) -> Any:
        """Return the value of TensorFlow's variable, None if it was given none."""
        return self._values.get(id(variable))

    def assign(self, variable: Any, value: Any) -> Any:
        """Replace a value. Raises BadModel inside of a branch or loop of the graph, where it would get lost."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise BadModel(
                f"the model assigns the variable {variable.name} inside of a branch, loop or tf.function of its own, where workers can't "
                "see the value; assign it in the body of call"
            )
        value = tf.convert_to_tensor(value, variable.dtype)
        value.shape.assert_is_compatible_with(variable.shape)
        self._values[id(variable)] = value
        return value

    def __enter__(self) -> GivenValues:
        for generator, seed in self._seeds:
            held = vars(generator)
            self._left.append((held, {name: held[name] for name in ("_generator", "_rng_type", "_built")}))
            # past its own way of setting attributes, which takes note of what a checkpoint would have
            held.update(_generator=_Draws(seed), _rng_type=backend.RandomGenerator.RNG_STATEFUL, _built=True)
        self._token: Token[GivenValues | None] = _given.set(self)
        # a model's call, losses and metrics are converted as `fit` does; what traces this isn't
        self._converted = ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED)
        self._converted.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._converted.__exit__(kind, error, trace)
        _given.reset(self._token)
        for held, before in self._left:
            held.update(before)


class _Draws:
    """What Keras uses of `tf.random.Generator`, with numbers that depend on a seed and the place of the draw in the model's code."""

    def __init__(self, seed: Any) -> None:
        self._seed, self._draws = seed, 0

    def _next(self) -> Any:
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

    def make_seeds(self, count: int = 1) -> Any:
        """Return seeds, of shape [2, count]."""
        return tf.stack([self._next() for _ in range(count)], 1)

    def uniform(
        self,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = tf.float32,
        name: str | None = None,
    ) -> Any:
        """Draw from a range."""
        return tf.random.stateless_uniform(shape, self._next(), minval, maxval, dtype, name)

    def normal(self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = tf.float32) -> Any:
        """Draw from a normal distribution."""
        return tf.random.stateless_normal(shape, self._next(), mean, stddev, dtype)

    def truncated_normal(
        self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = tf.float32
    ) -> Any:
        """Draw from one that is cut off at two deviations."""
        return tf.random.stateless_truncated_normal(shape, self._next(), mean, stddev, dtype)


def _looking_first(own: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of variables; `instead(given values, variable, value, *arguments)` answers for those that were given one."""

    def method(variable: Any, *arguments: Any, **keywords: Any) -> Any:
        given = _given.get()
        value = None if given is None else given.find(variable)
        if value is None:
            return own(variable, *arguments, **keywords)
        return instead(given, variable, value, *arguments, **keywords)

    return method


def _read(given: GivenValues, variable: Any, value: Any, *_: Any, **__: Any) -> Any:
    return value


def _gather(given: GivenValues, variable: Any, value: Any, indices: Any, name: str | None = None) -> Any:
    return tf.gather(value, indices)


def _gather_nd(given: GivenValues, variable: Any, value: Any, indices: Any, name: str | None = None) -> Any:
    return tf.gather_nd(value, indices)


def _assign(given: GivenValues, variable: Any, value: Any, new: Any, *_: Any, **__: Any) -> Any:
    return given.assign(variable, new)


def _assign_add(given: GivenValues, variable: Any, value: Any, delta: Any, *_: Any, **__: Any) -> Any:
    return given.assign(variable, value + tf.convert_to_tensor(delta, value.dtype))


def _assign_sub(given: GivenValues, variable: Any, value: Any, delta: Any, *_: Any, **__: Any) -> Any:
    return given.assign(variable, value - tf.convert_to_tensor(delta, value.dtype))


def _scatter(given: GivenValues, variable: Any, value: Any, *_: Any, **__: Any) -> Any:
    raise BadModel(
        f"the model changes a part of the variable {variable.name}, which workers can't agree on; assign the whole"
    )


METHODS: dict[str, Callable[..., Any]] = {
    "_read_variable_op": _read,
    "sparse_read": _gather,
    "gather_nd": _gather_nd,
    "assign": _assign,
    "assign_add": _assign_add,
    "assign_sub": _assign_sub,
    **{
        name: _scatter
        for name in dir(resource_variable_ops.BaseResourceVariable)
        if name.startswith(("scatter_", "batch_scatter_"))
    },
}
"""Methods by which variables are read and changed, and what is done instead."""

for _kind in (resource_variable_ops.BaseResourceVariable, resource_variable_ops.ResourceVariable):
    # some methods of the one are wrapped once more in the other
    for _name in vars(_kind).keys() & METHODS.keys():
        setattr(_kind, _name, _looking_first(vars(_kind)[_name], METHODS[_name]))
