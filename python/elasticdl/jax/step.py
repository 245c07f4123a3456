"""What is compiled: the gradient of a chunk, the optimizer's update, an evaluation; and the bookkeeping of a sum of gradients.

Each is a program of its own for XLA. What is fused with what decides about last bits, so nothing that the plain loop lacks is compiled
together with what it has: one worker with full chunks has the bits of `nnx.jit` over gradient and update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx

from elasticdl.errors import BadModel
from elasticdl.jax import building
from elasticdl.jax.runtime import seed_python
from elasticdl.jax.state import Leaves
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, call, leaves
from elasticdl.worker.modelfile import describe
from elasticdl.worker.usercode import run

LARGEST_VARIABLE = 64 << 10
"""Bytes of a variable that may change while the model trains without being a parameter; larger ones are constants."""


def may_change(variable: jax.Array) -> bool:
    """Tell whether a variable that is no parameter may change while the model trains: real or whole numbers, and few of them."""
    return variable.nbytes <= LARGEST_VARIABLE and any(
        jnp.issubdtype(variable.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)
    )


class Model:
    """A model in parts: its variables are outside of it, and it is put together where it is traced.

    Attributes:
        parameters: what is trained (`nnx.Param`).
        others: variables that are neither parameters nor randomness, such as running statistics.
        random: keys and counts of its random streams; the same at the beginning of each chunk.
    """

    def __init__(self, user: UserModel, made: nnx.Module, seed: int) -> None:
        """Take a model apart. `seed`: of the job."""
        self._user, self._seed = user, seed
        parts = (nnx.Param, nnx.RngState, ...)
        made.eval()
        self._evaluated = nnx.split(made, *parts)[0]
        made.train()
        self._trained, *states = nnx.split(made, *parts)
        self.parameters, self.random, self.others = (Leaves(nnx.as_pure(state)) for state in states)
        self._gradient = jax.jit(self._trace_gradient)
        self._outputs = jax.jit(self._trace_outputs)
        self._evaluation = jax.jit(self._trace_evaluation)

    def gradient(
        self, batch: Batch, seeds: npt.NDArray[np.uint32]
    ) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
        """Return the mean loss of a batch, its gradients by the parameters, and the other variables after it."""
        loss, slopes, after = self._gradient(
            *self._arguments(seeds), batch.features, batch.labels, batch.weights
        )
        return loss, slopes, after

    def evaluate(self, batch: Batch, seeds: npt.NDArray[np.uint32]) -> tuple[Any, jax.Array]:
        """Return outputs and mean loss of a batch, not in training mode."""
        outputs, loss = self._evaluation(*self._arguments(seeds), batch.features, batch.labels, batch.weights)
        return outputs, loss

    def outputs(self, features: Any, seeds: npt.NDArray[np.uint32]) -> Any:
        """Return what the model gives, not in training mode."""
        return self._outputs(*self._arguments(seeds), features)

    def _arguments(self, seeds: npt.NDArray[np.uint32]) -> tuple[Any, ...]:
        return self.parameters.arrays, self.others.arrays, self.random.arrays, seeds

    # ------------------------------------------------------------------ traced

    def _whole(self, graph: Any, parameters: Any, others: Any, random: Any, seeds: Any) -> nnx.Module:
        seed_python(self._seed)
        keys = [
            _folded(one, seeds) if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else one for one in random
        ]
        whole: nnx.Module = nnx.merge(
            graph, self.parameters.tree(parameters), self.random.tree(keys), self.others.tree(others)
        )
        return whole

    def _trace_gradient(
        self, parameters: Any, others: Any, random: Any, seeds: Any, features: Any, labels: Any, weights: Any
    ) -> tuple[Any, Any, Any]:
        batch = Batch(len(leaves(features)[0]), features, labels, weights)

        def mean_loss(parameters: Any) -> tuple[Any, Any]:
            model = self._whole(self._trained, parameters, others, random, seeds)
            loss = building.loss_of(self._user, batch, call(model, features))
            return loss, self._after(model, others)

        (loss, after), slopes = jax.value_and_grad(mean_loss, has_aux=True)(parameters)
        return loss, slopes, after

    def _after(self, model: nnx.Module, before: Sequence[Any]) -> list[Any]:
        """Return the other variables as a call has left them. Raises BadModel for what must not change."""
        found = dict(Leaves.named(nnx.as_pure(nnx.state(model))))
        after = []
        for name, old in zip(self.others.names, before, strict=True):
            new = found.get(name, old)
            if new is not old and not may_change(old):
                raise BadModel(
                    f"{self._user.path}: training changes the variable {name!r} of {old.nbytes:,} bytes ({building.shown(old)}); those of "
                    f"more than {LARGEST_VARIABLE >> 10} KiB, and what is neither real nor whole numbers, have to stay as they are: "
                    "make it an nnx.Param, or smaller"
                )
            if (new.shape, new.dtype) != (old.shape, old.dtype):
                raise BadModel(
                    f"{self._user.path}: training makes {building.shown(new)} of the variable {name!r}, which is {building.shown(old)}; "
                    "its type and shape have to stay as they are"
                )
            after.append(new)
        return after

    def _trace_outputs(self, parameters: Any, others: Any, random: Any, seeds: Any, features: Any) -> Any:
        return call(self._whole(self._evaluated, parameters, others, random, seeds), features)

    def _trace_evaluation(
        self, parameters: Any, others: Any, random: Any, seeds: Any, features: Any, labels: Any, weights: Any
    ) -> tuple[Any, Any]:
        outputs = self._trace_outputs(parameters, others, random, seeds, features)
        batch = Batch(len(leaves(features)[0]), features, labels, weights)
        return outputs, building.loss_of(self._user, batch, outputs)


class Update:
    """The optimizer of a model's parameters, with its state."""

    def __init__(self, user: UserModel, optimizer: optax.GradientTransformation, parameters: Leaves) -> None:
        """Make the state. Raises BadModel."""
        self._user, self._optimizer, self._parameters = user, optimizer, parameters
        self.state = Leaves(run(user, optimizer.init, parameters.tree(parameters.arrays)))
        # what is donated is changed in its own memory
        self._update = jax.jit(self._trace, donate_argnums=(0, 1))

    def apply(self, slopes: Sequence[jax.Array]) -> None:
        """Step with the gradients."""
        self._parameters.arrays, self.state.arrays = self._update(
            self._parameters.arrays, self.state.arrays, list(slopes)
        )
        jax.block_until_ready(self._parameters.arrays)

    def try_once(self) -> None:
        """Step on copies with gradients of zero. Raises BadModel for an optimizer that wants more than one gradient a step."""
        copies = (
            [jnp.array(one, copy=True) for one in part.arrays] for part in (self._parameters, self.state)
        )
        try:
            self._update(*copies, [jnp.zeros_like(one) for one in self._parameters.arrays])
        except BadModel:
            raise
        except Exception as error:
            raise BadModel(
                f"{self._user.path}: the update of the optimizer failed: {describe(error, self._user.path)}; workers exchange one mean "
                "gradient a step: use an optimizer that takes gradients and parameters only (optax.lbfgs evaluates the loss several times)"
            ) from error

    def _trace(self, parameters: Any, state: Any, slopes: Any) -> tuple[Any, Any]:
        tree = self._parameters.tree
        changes, after = self._optimizer.update(tree(slopes), self.state.tree(state), tree(parameters))
        moved = jax.tree.leaves(optax.apply_updates(tree(parameters), changes))
        return self._same("parameters", moved, parameters), self._same("state", jax.tree.leaves(after), state)

    def _same(self, what: str, after: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        """Return arrays in the types of those before them, none of which is weak. Raises BadModel if they are others."""
        if [(one.shape, one.dtype) for one in after] != [(one.shape, one.dtype) for one in before]:
            raise BadModel(
                f"{self._user.path}: the optimizer changes types or shapes of its {what}: they have to stay as they are at the first step"
            )
        return [jnp.asarray(one, one.dtype) for one in after]


def _folded(key: jax.Array, seeds: jax.Array) -> jax.Array:
    """Return a key, or each of an array of keys, with two numbers folded into it."""
    fold = jax.random.fold_in
    found: jax.Array = jax.vmap(lambda one: fold(fold(one, seeds[0]), seeds[1]))(key.reshape(-1)).reshape(
        key.shape
    )
    return found
