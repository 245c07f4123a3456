"""The compiled functions of a training step: a chunk's gradient sum, and the commit.

They keep no accumulator and know no group. A chunk is computed in a stateless scope: every variable's committed value goes in, new
values of non-trainable ones come out beside the gradients, and nothing is assigned before the commit, so computing a chunk twice or
for a step that is given up leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.internals import clear_losses
from elasticdl.keras.library import library_of
from elasticdl.keras.loss import ChunkLoss


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies one after the other in the flat accumulator.

    Attributes:
        trained: trainable variables that the loss depends on; their gradient sums come first.
        changed: float non-trainable variables that a chunk changes; their changes, weighted by n, come second.
        sizes: elements of each.
    """

    trained: tuple[Any, ...]
    changed: tuple[Any, ...]
    sizes: tuple[int, ...]


class TrainingStep:
    """One model's compiled step. All calls from one thread."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loss: ChunkLoss,
        spec: tuple[Any, ...],
        full: int,
        xla: bool,
        path: Path,
    ) -> None:
        """`spec`: the signature of a batch with an unknown number of examples; `full`: examples of a full-size chunk.

        With `xla`, full-size chunks are compiled by XLA, which wants static shapes; shorter ones never are, so that which
        code computes a chunk depends on its size alone.
        """
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._path = path
        self._full = full
        self._layout: Layout | None = None
        self.traces = 0
        """How often Python code of the step has been traced."""

        self._library = library = library_of(model)
        self._trainables = library.trainable(model)
        others = library.fixed(model)
        self._seeded = library.seed_states(model)
        known = {id(state) for state in self._seeded}
        self._others = [variable for variable in others if id(variable) not in known]
        wide = any(v.dtype == "float64" for v in [*self._trainables, *self._others])
        self.dtype = tf.float64 if wide else tf.float32

        self._scalar = tf.TensorSpec([], self.dtype)
        rest = (self._scalar, tf.TensorSpec([len(self._seeded), 2], tf.int64))
        self._compute = self._compute_full = Compiled(self._trace_compute, (spec, *rest))
        if xla:
            static = tf.nest.map_structure(lambda part: _with_examples(part, full), spec)
            self._compute_full = Compiled(self._trace_compute, (static, *rest), jit_compile=True)
        self._xla = xla
        self._apply: Compiled | None = None

    @property
    def generators(self) -> int:
        """Return the number of seed generators in the model."""
        return len(self._seeded)

    @property
    def layout(self) -> Layout:
        """Return the accumulator's layout; known after the first trace."""
        assert self._layout is not None, "compute has run once"
        return self._layout

    @property
    def size(self) -> int:
        """Return the elements of the flat accumulator."""
        return sum(self.layout.sizes)

    @property
    def gradient_size(self) -> int:
        """Return how many of them are gradients."""
        return sum(self.layout.sizes[: len(self.layout.trained)])

    def compute(self, data: tuple[Any, ...], examples: int, seeds: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Return (sum of the examples' losses, flat gradient sums and weighted changes), both eager tensors."""
        function = self._compute_full if examples == self._full else self._compute
        loss, flat = function(data, tf.constant(examples, self.dtype), tf.constant(seeds))
        return loss, flat

    def apply(self, flat: Any, examples: float) -> None:
        """Commit `flat` / `examples`; 0 examples change nothing."""
        if not examples:
            return
        if self._apply is None:
            signature = (tf.TensorSpec([self.size], self.dtype), self._scalar)
            self._apply = Compiled(self._trace_apply, signature, jit_compile=self._xla)
        self._apply(flat, tf.constant(examples, self.dtype))

    # ------------------------------------------------------------------ traced

    def _trace_compute(self, data: tuple[Any, ...], examples: Any, seeds: Any) -> tuple[Any, Any]:
        loss, parts = self._differentiate(data, examples, seeds)
        return loss, tf.concat([tf.reshape(part, [-1]) for part in parts], 0)

    def _trace_apply(self, flat: Any, examples: Any) -> None:
        self.traces += 1
        shapes = [v.shape for v in (*self.layout.trained, *self.layout.changed)]
        split = tf.split(flat, self.layout.sizes)
        parts = [tf.reshape(part, shape) for part, shape in zip(split, shapes, strict=True)]
        count = len(self.layout.trained)
        pairs = zip(parts[:count], self.layout.trained, strict=True)
        means = {id(variable): tf.cast(part / examples, variable.dtype) for part, variable in pairs}
        # a variable without a gradient is given as None, and left alone, decay and momentum included
        slopes = [means.get(id(variable)) for variable in self._trainables]
        self._library.apply(self._optimizer, slopes, self._trainables)
        for part, variable in zip(parts[count:], self.layout.changed, strict=True):
            variable.assign(variable.value + tf.cast(part / examples, variable.dtype))

    def _differentiate(self, data: tuple[Any, ...], examples: Any, seeds: Any) -> tuple[Any, list[Any]]:
        """Return n·loss and the parts of the accumulator, in the accumulator's type."""
        self.traces += 1
        features, labels, weights = (*data, None) if len(data) == 2 else data
        trainables = [tf.convert_to_tensor(variable.value) for variable in self._trainables]
        others = [tf.convert_to_tensor(variable.value) for variable in self._others]
        mapping = [
            *zip(self._trainables, trainables, strict=True),
            *zip(self._others, others, strict=True),
            *((state, seeds[index]) for index, state in enumerate(self._seeded)),
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for tensor in trainables:
                tape.watch(tensor)
            with self._library.values(mapping) as scope:
                predictions = self._model(features, training=True)
                loss = tf.cast(self._loss(labels, predictions, weights), self.dtype)
                for own in self._model.losses:
                    loss = loss + tf.cast(tf.reduce_sum(own), self.dtype)
            # n enters before the gradient: the mean's 1/n cancels, and gradients of integers stay integers
            total = loss * examples
            target = self._optimizer.scale_loss(total) if hasattr(self._optimizer, "scale_loss") else total
        gradients = tape.gradient(target, trainables)
        clear_losses(self._model)

        trained = [
            (v, tf.convert_to_tensor(g))
            for v, g in zip(self._trainables, gradients, strict=True)
            if g is not None
        ]
        changed = []
        for variable, before in zip(self._others, others, strict=True):
            after = scope.get_current_value(variable)
            if after is None or after is before:
                continue
            if not before.dtype.is_floating:
                raise BadModel(
                    f"{self._path}: training changes {variable.path!r}, which is of type {before.dtype.name}: workers can't agree on it; "
                    "make it a float variable, or leave it unchanged while training"
                )
            changed.append((variable, tf.cast(after - before, self.dtype) * examples))
        self._settle(trained, changed)
        return total, [tf.cast(part, self.dtype) for _, part in (*trained, *changed)]

    def _settle(self, trained: list[tuple[Any, Any]], changed: list[tuple[Any, Any]]) -> None:
        if not trained:
            raise BadModel(f"{self._path}: the loss does not depend on any trainable variable of the model")
        variables = [variable for variable, _ in (*trained, *changed)]
        sizes = tuple(int(np.prod(variable.shape, dtype=np.int64)) for variable in variables)
        layout = Layout(tuple(v for v, _ in trained), tuple(v for v, _ in changed), sizes)
        if self._layout is not None and [id(v) for v in variables] != [
            id(v) for v in (*self._layout.trained, *self._layout.changed)
        ]:
            raise BadModel(
                f"{self._path}: the model trains other variables each time it is called; workers can't agree on them"
            )
        self._layout = layout


def _with_examples(spec: Any, examples: int) -> Any:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return spec
    return tf.TensorSpec([examples, *spec.shape[1:]], spec.dtype)
