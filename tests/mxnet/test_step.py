"""A step is that of a plain loop with a Trainer: the bits of it with one full chunk, the same within rounding with several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel

from . import FULL, adapter_of, commit, made_of, records

STEPS = 12
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "name": lambda: ("nag", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    "aggregated": lambda: ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "clip_gradient": 0.1}),
    "scheduled": lambda: _of("adam", learning_rate=0.02, lr_scheduler=_of_factor(3), wd=0.01),
    "counting": lambda: _of("nadam", learning_rate=0.01),
    "centred": lambda: _of("rmsprop", learning_rate=0.01, centered=True),
}


def _of(name: str, **settings: Any) -> Any:
    import mxnet as mx

    return mx.optimizer.create(name, **settings)


def _of_factor(step: int) -> Any:
    import mxnet as mx

    return mx.lr_scheduler.FactorScheduler(step, factor=0.5, base_lr=0.02)


def layers(*made: Any) -> Any:
    import mxnet as mx

    model = mx.gluon.nn.HybridSequential()
    model.add(*made)
    model.initialize(mx.init.Xavier())
    return model


def convolution() -> Any:
    from mxnet.gluon import nn

    return layers(
        nn.HybridLambda(lambda F, rows: F.expand_dims(rows, 1)),
        nn.Conv1D(6, 3, padding=1),
        nn.BatchNorm(),
        nn.GELU(),
        nn.Flatten(),
        nn.Dense(3),
    )


def dense() -> Any:
    from mxnet.gluon import nn

    return layers(nn.Dense(16, activation="tanh"), nn.Dense(3))


def mean_loss(labels: Any, outputs: Any) -> Any:
    import mxnet as mx

    return mx.gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels).mean()


def plain(made: Any, user: Any) -> tuple[Any, Callable[[Any], None]]:
    """Return a copy of an adapter's model, and what trains it as the loop of any tutorial does."""
    import mxnet as mx

    model = user.model()
    model(mx.nd.zeros((FULL, 4)))
    for ours, theirs in zip(
        made.model.collect_params().values(), model.collect_params().values(), strict=True
    ):
        theirs.set_data(ours.data())
    optimizer = user.optimizer()
    keywords = optimizer[1] if isinstance(optimizer, tuple) else None
    name = optimizer[0] if isinstance(optimizer, tuple) else optimizer
    trainer = mx.gluon.Trainer(model.collect_params(), name, keywords, kvstore=None)
    is_mean = user.loss is mean_loss

    def step(raw: Any) -> None:
        features, labels = (mx.nd.array(one) for one in user.feed(raw, "training", None))
        with mx.autograd.record():
            outputs = model(features)
            loss = user.loss(labels, outputs) if is_mean else user.loss(outputs, labels)
        loss.backward()
        trainer.step(1 if is_mean else len(raw), ignore_stale_grad=True)

    return model, step


def values(model: Any) -> list[Any]:
    return [one.data().asnumpy() for one in model.collect_params().values()]


def commit_alone(made: Any, chunks: list[Any], step: int) -> None:
    """Let an adapter commit chunks as a worker does that is alone."""
    examples = sum(made.compute(made.convert(raw), step, lane).examples for lane, raw in enumerate(chunks))
    assert made.take(alone=True)
    made.commit(examples)


@pytest.mark.parametrize("loss", [None, mean_loss], ids=["values", "mean"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_full_chunk_is_the_plain_loops_step_bit_for_bit(name: str, loss: Any) -> None:
    user = made_of(convolution, OPTIMIZERS[name], loss)
    made = adapter_of(user, minibatch_size=6)  # whose inverse is rounded
    model, step = plain(made, user)
    for number in range(1, STEPS + 1):
        raw = records(6, number)
        if number % 4 in (1, 2):  # one way after the other, and after itself
            commit([made], [raw], number)
        else:
            commit_alone(made, [raw], number)
        step(raw)
        for ours, theirs in zip(values(made.model), values(model), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"step {number}")


@pytest.mark.parametrize("loss", [None, mean_loss], ids=["values", "mean"])
def test_a_commit_is_the_plain_step_on_all_records_together_whoever_is_alone(loss: Any) -> None:
    user = made_of(dense, OPTIMIZERS["scheduled"], loss)
    workers = [adapter_of(user), adapter_of(user)]
    alone = adapter_of(user)
    model, step = plain(workers[0], user)
    for number in range(1, STEPS + 1):
        chunks = [records(count, 10 * number + count) for count in (FULL, FULL, 1)]
        if number == STEPS:
            chunks = chunks[2:]  # a single chunk that is not full
        commit(workers, chunks, number)
        commit_alone(alone, chunks, number)
        step([record for chunk in chunks for record in chunk])
        for made in (workers[1], alone):
            for ours, theirs in zip(values(made.model), values(model), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_what_is_not_finite_is_seen_on_either_way() -> None:
    made: Any = adapter_of(made_of(dense))
    made.compute(made.convert([["inf", "1", "1", "1", "0"]] * FULL), 1, 0)
    assert not made.take(alone=True)
    made.result[:] = np.asarray(made.accumulator())
    assert not made.take(alone=False)


def test_double_precision_stays_double() -> None:
    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = np.asarray(raw, np.float64)
        return rows[:, :4], rows[:, 4]

    def wide() -> Any:
        model = dense()
        model.cast("float64")
        return model

    made = adapter_of(made_of(wide, feed=feed))
    assert commit([made], [records(FULL), records(3)], 1).dtype == "float64"
    assert {one.dtype for one in values(made.model)} == {np.dtype("float64")}


def test_a_parameter_without_a_gradient_in_a_step_neither_decays_nor_moves() -> None:
    import mxnet as mx

    class Heads(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.Dense(3, in_units=4)

        def forward(self, rows: Any) -> Any:
            return (self.first if rows[0, 0].asscalar() > 0 else self.second)(rows)

    def heads() -> Any:
        model = Heads()
        model.initialize()
        return model

    user = made_of(heads, OPTIMIZERS["name"])
    made = adapter_of(user)
    model, step = plain(made, user)
    for number in range(1, 7):
        raw = records(FULL, number)
        raw[0][0] = "1.0" if number % 3 else "-1.0"
        if number < 4:
            commit([made], [raw], number)
        else:
            commit_alone(made, [raw], number)
        step(raw)
        for ours, theirs in zip(values(made.model), values(model), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_noise_of_an_optimizer_is_the_same_in_all_workers() -> None:
    user = made_of(dense, lambda: ("sgld", {"learning_rate": 0.01}))
    workers = [adapter_of(user), adapter_of(user)]
    for number in (1, 2):
        # commit compares the digests; the first computes two chunks more than the second
        commit(workers, [records(FULL, number), records(FULL, 9), records(3)], number)


def test_large_values_without_a_gradient_have_to_stay() -> None:
    from mxnet.gluon import nn

    with pytest.raises(
        BadModel,
        match=r"m.py: training changes .*running_mean of 80,000 bytes and type float32, which has no gradient",
    ):
        adapter_of(made_of(lambda: layers(nn.Dense(20_000), nn.BatchNorm(), nn.Dense(3))))
