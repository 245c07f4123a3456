"""What can't be trained, or is no model file, is refused before the first step, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData, BadModel
from elasticdl.spec import framework
from elasticdl.spec.modelfile import check_model_file

from . import adapter_of, job, made_of

jax = pytest.importorskip("jax", reason="make setup-jax")
import optax  # noqa: E402
from flax import linen, nnx  # noqa: E402


def dense(rngs: Any) -> Any:
    return nnx.Linear(4, 3, rngs=rngs)


class Branching(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, rows: Any) -> Any:
        return self.last(rows) if rows.sum() > 0 else -self.last(rows)


class Whole(nnx.Module):
    def __init__(self) -> None:
        self.table = nnx.Param(jax.numpy.arange(3))


def weighted(records: Any, mode: str, metadata: Any) -> Any:
    return np.zeros((len(records), 4), np.float32), np.zeros(len(records), np.int32), np.ones(len(records))


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"model": lambda: 3}, "returned a int; expected a flax.nnx.Module$"),
        ({"model": lambda: linen.Dense(3)}, r"returned a Dense; expected a flax.nnx.Module; linen modules are used as nnx.bridge.ToNNX"),
        ({"model": lambda: nnx.Dropout(0.1)}, "a model without any nnx.Param; nothing of it can be trained"),
        ({"model": Whole}, "the parameter table is of type int32; parameters are floating-point: make it an nnx.Variable"),
        ({"model": lambda rngs: nnx.Linear(4, rngs=rngs)}, "failed: TypeError"),
        ({"model": Branching}, r"first training step failed: TracerBoolConversionError: .*\nfeed gave float32 \[8, 4\] and labels int32"),
        ({"optimizer": lambda: 3}, "returned a int; expected an optimizer of optax"),
        ({"optimizer": lambda: optax.MultiSteps(optax.sgd(0.1), 2)}, r"optimizer of optax; call its gradient_transformation\(\)"),
        ({"optimizer": optax.lbfgs}, "update of the optimizer failed: TypeError: .*; workers exchange one mean gradient a step: .*lbfgs"),
        ({"optimizer": lambda: optax.adam("fast")}, "the update of the optimizer failed"),
        ({"loss": lambda labels, outputs: 0.5}, "returned a float; expected an array with one value, or with one per example"),
        ({"loss": lambda labels, outputs: outputs}, r"returned an array float32 \[8, 3\]; expected"),
        ({"loss": lambda labels, outputs: outputs[:3, 0]}, "returned 3 values for 8 examples; expected one for each"),
        ({"loss": lambda labels, outputs: outputs["x"]}, r"training step failed: .*\nfeed gave float32 \[8, 4\] and labels int32 \[8\]"),
        ({"feed": weighted}, "feed gives weights of the examples, .* one value per example"),
    ],
)  # fmt: skip
def test_a_model_file_is_refused_with_what_was_received(symbols: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=said) as refused:
        adapter_of(made_of(**{"model": dense, **symbols}))
    assert str(refused.value).startswith("m.py: ")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda count: np.zeros((count, 4)), "returned a ndarray; feed returns (features, labels)"),
        (lambda count: (np.zeros((count, 4)), np.zeros(3)), "returned 3 and 8 examples; all arrays have one for each"),
        (lambda count: (np.array(["cat"] * count), np.zeros(count)), "returned a ndarray of type <U3, which is none of numbers"),
        (lambda count: (np.zeros((count, 4)), 0), "returned a scalar"),
    ],
)  # fmt: skip
def test_a_feed_is_refused_with_what_it_returned(made: Callable[[int], Any], said: str) -> None:
    with pytest.raises(BadData, match=f"m.py: feed {re.escape(said)}"):
        adapter_of(made_of(dense, feed=lambda records, mode, metadata: made(len(records))))


SYMBOLS = """
from flax import nnx
def loss(labels, outputs): return outputs.mean()
def optimizer(): return None
def feed(records, mode, metadata): return records
"""


def test_a_model_function_may_take_rngs_and_what_it_does_not_get_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SYMBOLS + "def custom_model(*, rngs, units=3): return (rngs, units)\n")
    spec = job(model_zoo=str(tmp_path), framework="auto", model_params="units=4")
    assert check_model_file(spec).format.name == "npz"
    user = framework.find("jax").load(spec)
    assert user.model(rngs=1, **user.params) == (1, 4)
    with pytest.raises(BadModel, match="--num_ps_pods=1: jax does not train with parameter servers"):
        check_model_file(job(model_zoo=str(tmp_path), num_ps_pods=1))
    (tmp_path / "m.py").write_text(SYMBOLS + "def custom_model(rngs, units): return (rngs, units)\n")
    with pytest.raises(BadModel, match="needs 'units', which nothing gives"):
        check_model_file(job(model_zoo=str(tmp_path)))
