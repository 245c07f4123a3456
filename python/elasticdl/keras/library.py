"""The two Keras of TensorFlow behind one face: Keras 3, and Keras 2, which is the package tf_keras.

Models, optimizers, metrics and callbacks belong to one of them, by their classes. What a worker needs of a model is asked of its library,
so that steps, evaluations and callbacks are the same code for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from elasticdl.keras import internals
from elasticdl.keras.runtime import without


class Values(Protocol):
    """The variables' values while a model is called."""

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable, None if it was not given one and has not changed."""


class Library(Protocol):
    """What differs between Keras 3 and Keras 2.

    Variables have the attributes of `keras.Variable`: path, value, shape, dtype, trainable, and the methods assign and numpy.
    """

    package: Any
    """The package: models, layers, optimizers and callbacks."""
    name: str
    """As people call it."""

    def begin(self, seed: int) -> None:
        """Forget models made before, and seed all that draws initial weights."""

    def is_optimizer(self, made: Any) -> bool:
        """Tell whether an object is an optimizer of this library."""

    def trainable(self, model: Any) -> list[Any]:
        """Return a model's trainable variables."""

    def fixed(self, model: Any) -> list[Any]:
        """Return its other variables."""

    def variables(self, model: Any) -> list[Any]:
        """Return all of them, in the order of a state."""

    def weights(self, model: Any) -> list[Any]:
        """Return those that `get_weights` returns, in its order."""

    def detach(self, model: Any) -> Any:
        """Take the optimizer, which callbacks find there, away from a model; return it, None if there is none."""

    def try_call(self, model: Any, features: Any, spec: Any) -> Any:
        """Call a model symbolically, which makes variables; `features`: of a sample, `spec`: their signature. Return what it gives."""

    def seed_states(self, model: Any) -> list[Any]:
        """Return what the model's randomness begins with, in a fixed order; `values` takes a seed of two integers for each."""

    def values(self, given: Iterable[tuple[Any, Any]]) -> AbstractContextManager[Values]:
        """Let variables have values while a model is called; what the call assigns goes nowhere else."""

    def scaled(self, model: Any, optimizer: Any) -> Any:
        """Return the optimizer that trains a model, with scaling of the loss where its types need that. Raises BadModel."""

    def build(self, optimizer: Any, model: Any) -> None:
        """Make the optimizer's variables."""

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables, in the order of a state."""

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Commit gradients; a variable with None stays as it is."""

    def finalize(self, optimizer: Any, model: Any) -> None:
        """Put averages that the optimizer keeps in the place of the weights."""

    def clip(self, optimizer: Any, gradients: list[Any]) -> list[Any]:
        """Return gradients as the optimizer's clipping leaves them."""

    def decays(self, optimizer: Any) -> Callable[[Any], bool]:
        """Return what tells whether weight decay is for a variable."""

    def rate_at(self, optimizer: Any, step: int) -> float:
        """Return the learning rate at a step."""

    def averaging(self, function: Callable[[Any, Any], Any], name: str, dtype: str) -> Any:
        """Return a metric that averages the values of a function (labels, predictions)."""

    def metric_variables(self, metric: Any) -> list[Any]:
        """Return a metric's variables."""

    def updated(
        self, metric: Any, state: Sequence[Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> list[Any]:
        """Return a metric's state after an update; its variables stay as they are. May be traced."""

    def ps_embedding(self) -> Any:
        """Return the class of an embedding without a variable, whose rows are looked up."""

    def fits_xla(self, layer: Any) -> bool:
        """Tell whether XLA may compile a layer that nobody has asked it for."""

    def write_saved_model(self, model: Any, path: str, signature: Any) -> None:
        """Write a SavedModel directory; `signature`: list of what the model takes, None if it knows that itself."""


class Keras3:
    """Implements `Library` for Keras 3."""

    package = keras
    name = "Keras"

    def begin(self, seed: int) -> None:
        """Forget models made before, and seed all that draws initial weights."""
        keras.utils.clear_session(free_memory=False)
        with without("tensorflow"):  # which this would import to seed it, whatever Keras computes with
            keras.utils.set_random_seed(seed % 2**32)

    def is_optimizer(self, made: Any) -> bool:
        """Tell whether an object is an optimizer of this library."""
        return isinstance(made, keras.optimizers.Optimizer)

    def trainable(self, model: Any) -> list[Any]:
        """Return a model's trainable variables."""
        return list(model.trainable_variables)

    def fixed(self, model: Any) -> list[Any]:
        """Return its other variables."""
        return list(model.non_trainable_variables)

    def variables(self, model: Any) -> list[Any]:
        """Return all of them."""
        return list(model.variables)

    def weights(self, model: Any) -> list[Any]:
        """Return those that `get_weights` returns."""
        return list(model.weights)

    def detach(self, model: Any) -> Any:
        """Take the optimizer away from a model."""
        return model.__dict__.pop("optimizer", None)

    def try_call(self, model: Any, features: Any, spec: Any) -> Any:
        """Call a model symbolically."""
        import tensorflow as tf  # Keras 3 may compute with something else

        return model(tf.nest.map_structure(_symbol, features, spec), training=True)

    def seed_states(self, model: Any) -> list[Any]:
        """Return the states of its seed generators."""
        return internals.seed_states(model)

    def values(self, given: Iterable[tuple[Any, Any]]) -> AbstractContextManager[Values]:
        """Let variables have values while a model is called."""
        scope: AbstractContextManager[Values] = keras.StatelessScope(
            state_mapping=list(given), collect_losses=True
        )
        return scope

    def scaled(self, model: Any, optimizer: Any) -> Any:
        """Return the optimizer, scaling the loss of models of float16 as Model.compile does."""
        if model.dtype_policy.name != "mixed_float16" or isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        ):
            return optimizer
        return keras.optimizers.LossScaleOptimizer(optimizer)

    def build(self, optimizer: Any, model: Any) -> None:
        """Make the optimizer's variables."""
        optimizer.build(model.trainable_variables)

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables."""
        return list(optimizer.variables)

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Commit gradients; Keras leaves a variable with None alone, decay and momentum included."""
        optimizer.apply(list(gradients), list(variables))

    def finalize(self, optimizer: Any, model: Any) -> None:
        """Put averages that the optimizer keeps in the place of the weights."""
        optimizer.finalize_variable_values(model.trainable_variables)

    def clip(self, optimizer: Any, gradients: list[Any]) -> list[Any]:
        """Return gradients as the optimizer's clipping leaves them."""
        return internals.clip(optimizer, gradients)

    def decays(self, optimizer: Any) -> Callable[[Any], bool]:
        """Return what tells whether weight decay is for a variable."""
        return internals.decays(optimizer)

    def rate_at(self, optimizer: Any, step: int) -> float:
        """Return the learning rate at a step."""
        if internals.follows_schedule(optimizer):
            optimizer.iterations.assign(step)
        return float(optimizer.learning_rate)

    def averaging(self, function: Callable[[Any, Any], Any], name: str, dtype: str) -> Any:
        """Return a metric that averages the values of a function."""
        return keras.metrics.MeanMetricWrapper(function, name, dtype=dtype)

    def metric_variables(self, metric: Any) -> list[Any]:
        """Return a metric's variables."""
        return list(metric.variables)

    def updated(
        self, metric: Any, state: Sequence[Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> list[Any]:
        """Return a metric's state after an update."""
        found: list[Any] = metric.stateless_update_state(list(state), *arguments, **keywords)
        return found

    def ps_embedding(self) -> Any:
        """Return the class of an embedding without a variable."""
        from elasticdl.keras.embedding import PsEmbedding  # it imports this

        return PsEmbedding

    def fits_xla(self, layer: Any) -> bool:
        """Tell whether XLA may compile a layer."""
        return bool(layer.supports_jit)

    def write_saved_model(self, model: Any, path: str, signature: Any) -> None:
        """Write a SavedModel directory."""
        model.export(path, format="tf_saved_model", verbose=False, input_signature=signature)


def _symbol(sample: Any, spec: Any) -> Any:
    """Return the symbol of TensorFlow's tensor of any number of examples."""
    import tensorflow as tf

    sparse, ragged = isinstance(sample, tf.SparseTensor), isinstance(sample, tf.RaggedTensor)
    # other sizes than that of the first are a matter of chance for what is not dense
    shape = spec.shape if sparse or ragged else sample.shape
    return keras.KerasTensor((None, *shape[1:]), sample.dtype.name, sparse=sparse, ragged=ragged)


KERAS: Library = Keras3()


def library_of(thing: Any) -> Library:
    """Return the library that a model, metric, optimizer or callback, or a class of them, is of; Keras 3 for anything else."""
    kinds = thing.__mro__ if isinstance(thing, type) else type(thing).__mro__
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in kinds):
        return tf_keras()
    return KERAS


def tf_keras() -> Library:
    """Return Keras 2. Raises ModuleNotFoundError if tf_keras is not installed."""
    from elasticdl.keras.keras2 import KERAS_2  # imports tf_keras

    return KERAS_2


def callbacks_of(callback: Any) -> Any:
    """Return the module of the callbacks of a callback's library."""
    return library_of(callback).package.callbacks
