"""A step is the plain loop's: the bits of it with one full chunk, the same within rounding with several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel

from . import FULL, adapter_of, commit, made_of, records
from .zoo import rows

jax = pytest.importorskip("jax", reason="make setup-jax")
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import linen, nnx  # noqa: E402

STEPS = 20


def dense(rngs: Any) -> Any:
    return nnx.Sequential(nnx.Linear(4, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 3, rngs=rngs))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, found: Any, train: bool = False) -> Any:
        found = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(found))
        return linen.Dense(3)(found)


class Bridged(nnx.Module):
    """A linen module with batch normalization, as nnx knows it."""

    def __init__(self, rngs: Any) -> None:
        self.inner, self.deterministic = nnx.bridge.ToNNX(Linen(), rngs=rngs), False

    def __call__(self, found: Any) -> Any:
        train = not self.deterministic
        return self.inner(found, train=train, mutable=["batch_stats"] if train else False)


def values_of(made: Any) -> dict[str, Any]:
    """Return what an adapter has trained."""
    parts = (made.model.parameters, made.model.others)
    return {
        name: np.asarray(one) for part in parts for name, one in zip(part.names, part.arrays, strict=True)
    }


def plain(made: Any, user: Any) -> tuple[Callable[[Any], None], Callable[[], dict[str, Any]]]:
    """Return the loop of any tutorial, one compiled step, over a model with an adapter's values; and what returns its values."""
    from flax.nnx import Rngs

    model = user.model(Rngs(0))
    if isinstance(model, Bridged):
        nnx.bridge.lazy_init(model, jnp.zeros((FULL, 4)))
    model.train()
    own = values_of(made)
    state = nnx.state(model, nnx.Not(nnx.RngState))
    given = jax.tree_util.tree_map_with_path(lambda path, one: jnp.array(own[name(path)]), nnx.as_pure(state))
    nnx.update(model, given)
    optimizer = nnx.Optimizer(model, user.optimizer(), wrt=nnx.Param)

    @nnx.jit
    def compiled(model: Any, optimizer: Any, features: Any, labels: Any) -> None:
        gradient = nnx.grad(lambda model: user.loss(labels, model(features)))(model)
        optimizer.update(model, gradient)

    def step(raw: Any) -> None:
        compiled(model, optimizer, *user.feed(raw, "training", None))

    def values() -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(nnx.as_pure(nnx.state(model, nnx.Not(nnx.RngState))))
        return {name(path): np.asarray(one) for path, one in leaves}

    return step, values


def name(path: Any) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)


@pytest.mark.parametrize("model", [rows.custom_model, Bridged], ids=["nnx", "linen"])
def test_one_full_chunk_is_the_plain_loops_step_bit_for_bit(model: Any) -> None:
    user = made_of(model, rows.optimizer)
    made = adapter_of(user)
    step, values = plain(made, user)
    for number in range(1, STEPS + 1):
        raw = records(FULL, number)
        done = made.compute(made.convert(raw), number, 0)
        assert made.take(alone=True)
        made.commit(done.examples)
        step(raw)
        for name_of, value in values().items():
            np.testing.assert_array_equal(values_of(made)[name_of], value, f"{name_of} after step {number}")


def test_a_commit_is_the_plain_step_on_all_records_together_whoever_is_alone() -> None:
    user = made_of(dense)
    workers = [adapter_of(user), adapter_of(user)]
    alone = adapter_of(user)
    step, values = plain(alone, user)
    for number in range(1, 6):
        chunks = [records(count, 10 * number + count) for count in (FULL, FULL, 5)]
        commit(workers, chunks, number)
        examples = sum(
            alone.compute(alone.convert(raw), number, lane).examples for lane, raw in enumerate(chunks)
        )
        assert alone.take(alone=True)
        alone.commit(examples)
        step([record for chunk in chunks for record in chunk])
        for made in (workers[1], alone):
            for name_of, value in values().items():
                np.testing.assert_allclose(values_of(made)[name_of], value, rtol=1e-4, atol=1e-6)


def test_parameters_of_half_the_bits_are_averaged_as_floats_and_healed_and_written(tmp_path: Any) -> None:
    def model(rngs: Any) -> Any:
        return nnx.Linear(4, 3, rngs=rngs, param_dtype=jnp.bfloat16)

    user = made_of(model)
    made, healed = adapter_of(user), adapter_of(user, seed=8)
    step, values = plain(made, user)
    for number in (1, 2, 3):
        raw = records(FULL, number)
        assert commit([made], [raw], number).dtype == np.float32
        step(raw)
    healed.load(made.image())
    for name_of, value in values().items():
        np.testing.assert_array_equal(values_of(healed)[name_of], value)
    made.export(str(tmp_path / "m.npz"), "npz")
    with np.load(tmp_path / "m.npz") as file:
        assert file["kernel"].dtype == np.float32
        np.testing.assert_array_equal(file["kernel"], values()["kernel"].astype(np.float32))


class Counting(nnx.Module):
    def __init__(self, rngs: Any, first: Any, by: Callable[[Any], Any]) -> None:
        self.last, self.by = nnx.Linear(4, 3, rngs=rngs), by
        self.counted = nnx.Variable(jnp.asarray(first))

    def __call__(self, found: Any) -> Any:
        self.counted.set_value(self.counted.get_value() + self.by(found))
        return self.last(found)


def test_whole_numbers_count_steps_and_not_chunks_and_infinite_ones_stay() -> None:
    class Masked(Counting):
        def __init__(self, rngs: Any) -> None:
            super().__init__(rngs, 0, lambda found: 1)
            self.mask = nnx.Variable(jnp.array([0.0, -jnp.inf]))

    workers = [adapter_of(made_of(Masked)) for _ in range(2)]
    for number in (1, 2, 3):
        commit(workers, [records(FULL, number), records(3), records(FULL, 2 * number)], number)
    for made in workers:
        assert values_of(made)["counted"] == 3
        assert values_of(made)["mask"].tolist() == [0.0, -np.inf]
        made.compute(made.convert(records(FULL)), 4, 0)
        assert made.take(alone=True), "finite"


def test_variables_that_workers_cannot_agree_on_are_refused() -> None:
    made = adapter_of(made_of(lambda rngs: Counting(rngs, 0, lambda found: (found[:, 0] > 0).sum())))
    with pytest.raises(
        BadModel,
        match=r"m.py: training changes the variable 'counted', .*int32.* by another number in each chunk",
    ):
        commit([made], [[["1.0"] * 5] * FULL, [["1.0"] * 5] * (FULL - 1) + [["-1.0"] * 4 + ["1.0"]]], 1)
    with pytest.raises(
        BadModel, match=r"training changes the variable 'counted' of 80,000 bytes .*of more than 64 KiB"
    ):
        adapter_of(made_of(lambda rngs: Counting(rngs, np.zeros(20_000, np.float32), lambda found: 1)))
    with pytest.raises(
        BadModel, match=r"training makes .* of the variable 'counted', which is float32 \[2\]"
    ):
        adapter_of(made_of(lambda rngs: Counting(rngs, np.zeros(2, np.float32), lambda found: found[:, :1])))


def test_what_is_not_finite_is_seen_on_either_way() -> None:
    made = adapter_of(made_of(dense))
    made.compute(made.convert([["inf", "1", "1", "1", "0"]] * FULL), 1, 0)
    assert not made.take(alone=True)
    made.result[:] = np.asarray(made.accumulator())
    assert not made.take(alone=False)


def test_a_joiner_that_is_healed_after_the_ring_commits_its_sum() -> None:
    donor, joiner = (adapter_of(made_of(dense)) for _ in range(2))
    commit([donor], [records(FULL)], 1)
    done = donor.compute(donor.convert(records(FULL, 2)), 2, 0)
    for made in (donor, joiner):
        made.result[:] = np.asarray(donor.accumulator())
        assert made.take(alone=False)
    joiner.zero()
    joiner.load(donor.image())
    joiner.zero()
    for made in (donor, joiner):
        made.commit(done.examples)
    assert joiner.digest() == donor.digest()


def test_sizes_are_traced_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def noting(labels: Any, outputs: Any) -> Any:
        traced.append(len(labels))
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels)

    made = adapter_of(made_of(dense, loss=noting))
    digest = made.digest()
    made.prepare_sizes([FULL, 5, 11])
    assert made.digest() == digest
    assert not np.any(np.asarray(made.accumulator()))
    assert sorted(set(traced)) == [5, FULL, 11]
    traced.clear()
    for lane, count in enumerate((5, FULL, 11)):
        made.compute(made.convert(records(count)), 1, lane)
    assert not traced
