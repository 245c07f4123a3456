"""What can't be trained, or is no model file, is refused before the first step, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData, BadModel

from . import adapter_of, made_of, records
from .test_step import dense, layers


def of(name: str, *arguments: Any, **settings: Any) -> Any:
    """Return `mxnet.NAME(…)`."""
    import mxnet as mx

    made: Any = mx
    for part in name.split("."):
        made = getattr(made, part)
    return made(*arguments, **settings)


def with_requests(request: str) -> Any:
    model = dense()
    model.collect_params().setattr("grad_req", request)
    return model


def embedding() -> Any:
    return of("gluon.nn.Embedding", 9, 3, sparse_grad=True)


def with_trainer() -> Any:
    return of("gluon.Trainer", dense().collect_params(), "sgd", kvstore=None)


def numpy_model() -> Any:
    import mxnet as mx

    mx.npx.set_np()
    return dense()


@pytest.fixture(autouse=True)
def plain_arrays() -> Any:
    """Leave no `set_np` to other tests."""
    yield
    import mxnet as mx

    mx.npx.reset_np()


def weighted(raw: Any, mode: str, metadata: Any) -> Any:
    return np.zeros((len(raw), 4), np.float32), np.zeros(len(raw), np.float32), np.ones(len(raw), np.float32)


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"model": lambda: layers(embedding())}, "the parameter embedding0_weight or its gradient is sparse"),
        ({"model": lambda: layers(of("gluon.contrib.nn.SyncBatchNorm", num_devices=2))}, "SyncBatchNorm, .*; use gluon.nn.BatchNorm"),
        ({"model": lambda: with_requests("add")}, 'has grad_req="add"; leave it out'),
        ({"model": lambda: with_requests("null")}, "the loss does not depend on any parameter"),
        ({"model": numpy_model}, r"npx.set_np\(\) is in force"),
        ({"model": lambda: 3}, "returned a int; expected a gluon.HybridBlock"),
        ({"model": lambda: of("gluon.nn.Sequential")}, "returned a Sequential; expected a gluon.HybridBlock"),
        ({"optimizer": lambda: with_trainer()}, "returned a Trainer; .* without a kvstore"),
        ({"optimizer": lambda: 3}, r"returned a int; expected an mx.optimizer.Optimizer, a name of one, or \(name, parameters\)"),
        ({"optimizer": lambda: "adamn"}, "create_optimizer failed: ValueError: Cannot find optimizer adamn"),
        ({"loss": lambda labels, outputs: 0.5}, "returned a float for 8 examples; expected one value for each"),
        ({"loss": lambda labels, outputs: outputs}, r"returned float32 \[8, 3\] for 8 examples"),
        ({"loss": lambda labels, outputs: outputs[:3, 0]}, r"returned float32 \[3\] for 8 examples"),
        ({"loss": lambda labels, outputs: outputs["x"]}, r"first training step .*\nfeed gave \(float32 \[8, 4\]\) and labels"),
        ({"loss": lambda labels, outputs: outputs.mean(), "feed": weighted}, "feed gives weights .* one value per example"),
    ],
)  # fmt: skip
def test_a_model_file_is_refused_with_what_was_received(symbols: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=said) as refused:
        adapter_of(made_of(**{"model": dense, **symbols}))
    assert str(refused.value).startswith("m.py: ")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda count: np.zeros((count, 4), np.float32), "returned a ndarray; feed returns (features, labels)"),
        (lambda count: (np.zeros((count, 4)), np.zeros(3)), "returned 3 and 8 examples; all arrays have one for each"),
        (lambda count: (of("nd.zeros", (count, 4)), np.zeros(count)), "returned a NDArray; feed returns"),
        (lambda count: ({"x": np.zeros(count)}, np.zeros(count)), "returned a dict; feed returns"),
        (lambda count: (np.zeros((count, 4)), np.float32(0)), "returned a float32; feed returns"),
        (lambda count: (np.zeros((count, 4), np.uint16), np.zeros(count)), "returned an array of uint16; MXNet takes float32,"),
        (lambda count: (np.zeros((0, 4), np.float32), np.zeros(0, np.float32)), "made no example of the first records, by which"),
    ],
)  # fmt: skip
def test_a_feed_is_refused_with_what_it_returned(made: Callable[[int], Any], said: str) -> None:
    with pytest.raises(BadData, match=f"m.py: feed {re.escape(said)}"):
        adapter_of(made_of(dense, feed=lambda raw, mode, metadata: made(len(raw))))


@pytest.mark.parametrize("name", ["F1", "PearsonCorrelation"])
def test_a_metric_that_is_no_sum_and_count_is_refused(name: str) -> None:
    user = made_of(dense, eval_metrics_fn=lambda: {"one": of(f"metric.{name}")})
    with pytest.raises(BadModel, match=rf"\['one'\]: the state of {name} is not a sum and a count"):
        adapter_of(user).evaluator(None).prepare(records(3))
