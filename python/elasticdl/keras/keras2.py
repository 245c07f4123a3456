"""Keras 2, the package tf_keras, behind `Library`; its private names that this package uses are here and in `givenvalues.py`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.core import ag_ctx
from tf_keras.src import backend  # the public module has no RandomGenerator

from elasticdl.errors import BadModel
from elasticdl.keras import internals
from elasticdl.keras.givenvalues import GivenValues
from elasticdl.keras.library import Library, Values


class Weight:
    """A variable of TensorFlow with the face of `keras.Variable`."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.name: str = variable.name.rpartition("/")[2].partition(":")[0]
        self.path: str = variable.name.partition(":")[0]
        self.shape: tuple[int, ...] = tuple(variable.shape)
        self.dtype: str = variable.dtype.name
        self.trainable: bool = variable.trainable

    @property
    def value(self) -> Any:
        """Return the value as a tensor."""
        return self.variable.value()

    def assign(self, value: Any) -> None:
        """Replace the value."""
        self.variable.assign(value)

    def numpy(self) -> Any:
        """Return a copy of the value."""
        return self.variable.numpy()


def _weights(variables: Iterable[Any]) -> list[Any]:
    """Return the faces of variables: for one variable always the same object."""
    found = []
    for variable in variables:
        own = getattr(variable, "_variable", variable)  # inside of one that casts, of mixed precision
        face = own.__dict__.get("_elasticdl_weight")
        if face is None:
            face = own.__dict__["_elasticdl_weight"] = Weight(own)
        found.append(face)
    return found


class _MeanOf(tf_keras.metrics.Mean):  # type: ignore[misc]  # Keras has no types
    """The mean of a function's values; Keras' own wrapper casts labels to floats first."""

    def __init__(self, function: Callable[[Any, Any], Any], name: str, dtype: str) -> None:
        super().__init__(name, dtype=dtype)
        self._function = function

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> Any:
        """Add the values for some examples."""
        return super().update_state(self._function(labels, predictions), sample_weight=sample_weight)


class Keras2:
    """Implements `Library` for Keras 2."""

    package = tf_keras
    name = "Keras 2 (tf_keras)"

    def begin(self, seed: int) -> None:
        """Forget models made before, and seed all that draws initial weights."""
        tf_keras.backend.clear_session()
        # with generators the initial weights follow the seed, whatever was drawn before
        tf_keras.backend.experimental.enable_tf_random_generator()
        tf_keras.utils.set_random_seed(seed % 2**32)

    def is_optimizer(self, made: Any) -> bool:
        """Tell whether an object is an optimizer of this library."""
        return isinstance(made, tf_keras.optimizers.Optimizer | tf_keras.optimizers.legacy.Optimizer)

    def trainable(self, model: Any) -> list[Any]:
        """Return a model's trainable variables."""
        return _weights(model.trainable_variables)

    def fixed(self, model: Any) -> list[Any]:
        """Return its other variables."""
        return _weights(model.non_trainable_variables)

    def variables(self, model: Any) -> list[Any]:
        """Return all of them."""
        return _weights(model.variables)

    def weights(self, model: Any) -> list[Any]:
        """Return those that `get_weights` returns."""
        return _weights(model.weights)

    def detach(self, model: Any) -> Any:
        """Take the optimizer away from a model, which would save it."""
        found = getattr(model, "optimizer", None)
        if found is not None:
            del model.optimizer
        return found

    def try_call(self, model: Any, features: Any, spec: Any) -> Any:
        """Trace the model once: variables are made outside of the trace, and nothing is assigned."""

        def call(features: Any) -> Any:
            with ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED):
                return model(features, training=True)

        outputs = tf.function(call, autograph=False).get_concrete_function(spec).structured_outputs
        for generator in self.seed_states(model):
            generator._maybe_init()  # inside of a graph it can't be done
        return outputs

    def seed_states(self, model: Any) -> list[Any]:
        """Return the generators of random numbers of its layers."""
        layers = internals.layers_of(model)
        found = (getattr(layer, "_random_generator", None) for layer in layers)
        return list({id(one): one for one in found if isinstance(one, backend.RandomGenerator)}.values())

    def values(self, given: Iterable[tuple[Any, Any]]) -> AbstractContextManager[Values]:
        """Let variables have values while a model is called; to be entered while it is traced."""
        return GivenValues(given)

    def scaled(self, model: Any, optimizer: Any) -> Any:
        """Return the optimizer. Raises BadModel for models of float16, whose loss would have to be scaled."""
        if model.dtype_policy.name == "mixed_float16":
            raise BadModel(
                "mixed_float16 is not for --framework=tf_keras; use mixed_bfloat16, or port the model to Keras 3"
            )
        return optimizer

    def build(self, optimizer: Any, model: Any) -> None:
        """Make the optimizer's variables."""
        if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            assert optimizer.iterations is not None, "asked for, it is made"
            optimizer._create_all_weights(model.trainable_variables)
        else:
            optimizer.build(model.trainable_variables)

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        """Return the optimizer's variables, with rates that callbacks may change."""
        if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            return _weights(optimizer.variables)
        rates = [value for _, value in sorted(optimizer._hyper.items()) if isinstance(value, tf.Variable)]
        return _weights([*optimizer.weights, *rates])

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Commit gradients; variables without one are not named."""
        pairs = zip(gradients, variables, strict=True)
        optimizer.apply_gradients([(slope, one.variable) for slope, one in pairs if slope is not None])

    def finalize(self, optimizer: Any, model: Any) -> None:
        """Put averages that the optimizer keeps in the place of the weights."""
        if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            optimizer.finalize_variable_values(model.trainable_variables)

    def clip(self, optimizer: Any, gradients: list[Any]) -> list[Any]:
        """Return gradients as the optimizer's clipping leaves them."""
        if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            clipped: list[Any] = optimizer._clip_gradients(gradients)
            return clipped
        places = [place for place, one in enumerate(gradients) if one is not None]
        done = optimizer._transform_gradients([(gradients[place], None) for place in places])
        of_place = dict(zip(places, (slope for slope, _ in done), strict=True))
        return [of_place.get(place) for place in range(len(gradients))]

    def decays(self, optimizer: Any) -> Callable[[Any], bool]:
        """Return what tells whether weight decay is for a variable; legacy optimizers have none."""
        if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            return lambda variable: False
        return lambda variable: bool(optimizer._use_weight_decay(getattr(variable, "variable", variable)))

    def rate_at(self, optimizer: Any, step: int) -> float:
        """Return the learning rate at a step."""
        if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            optimizer.iterations.assign(step)
            return float(optimizer._decayed_lr(tf.float32))
        rate = optimizer._learning_rate
        return float(rate(step) if callable(rate) else rate)

    def averaging(self, function: Callable[[Any, Any], Any], name: str, dtype: str) -> Any:
        """Return a metric that averages the values of a function."""
        return _MeanOf(function, name, dtype)

    def metric_variables(self, metric: Any) -> list[Any]:
        """Return a metric's variables."""
        return _weights(metric.variables)

    def updated(
        self, metric: Any, state: Sequence[Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> list[Any]:
        """Return a metric's state after an update."""
        own = self.metric_variables(metric)
        if not tf.executing_eagerly():
            given = GivenValues(zip(own, map(tf.convert_to_tensor, state), strict=True))
            with given:
                metric.update_state(*arguments, **keywords)
            return [given.get_current_value(variable) for variable in own]
        before = [variable.numpy() for variable in own]
        _assign_all(own, state)
        metric.update_state(*arguments, **keywords)
        after = [tf.constant(variable.numpy()) for variable in own]
        _assign_all(own, before)
        return after

    def ps_embedding(self) -> Any:
        """Return the class of an embedding without a variable."""
        from elasticdl.keras.embeddings2 import PsEmbedding  # it imports this

        return PsEmbedding

    def fits_xla(self, layer: Any) -> bool:
        """Tell whether XLA may compile a layer: not unless somebody asks for it."""
        return False

    def write_saved_model(self, model: Any, path: str, signature: Any) -> None:
        """Write a SavedModel directory."""
        with contextlib.redirect_stdout(io.StringIO()):  # where it says what it has written, at length
            if signature is None:
                model.export(path)
                return
            archive = tf_keras.export.ExportArchive()
            archive.track(model)
            archive.add_endpoint("serve", lambda features: model(features, training=False), signature)
            archive.write_out(path)


def _assign_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


KERAS_2: Library = Keras2()
