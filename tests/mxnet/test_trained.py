"""What a job wrote, and what `save_parameters` writes, is read as data; what is damaged or of another model is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel
from elasticdl.spec import framework
from elasticdl.worker.contract.trained import GroupState
from elasticdl.worker.contract.usermodel import UserModel

from . import FULL, adapter_of, commit, job, made_of, records
from .test_step import convolution, dense


def predictions(user: UserModel, weights: Any) -> Any:
    made = framework.find("mxnet").trained(user, job(), None, weights)
    made.prepare(records(3))
    return made.predict(made.convert(records(5, 3)), 0, 0)


def test_all_forms_of_a_models_weights_predict_the_same(tmp_path: Path) -> None:
    user = made_of(convolution)
    made: Any = adapter_of(user)
    commit([made], [records(FULL, 1)], 1)
    made.export(str(tmp_path / "exported"), "gluon")
    made.model.save_parameters(str(tmp_path / "saved.params"))
    state = GroupState(tmp_path, made.image())
    framework.find("mxnet").export_state(user, job(), state, str(tmp_path / "of_state"), "gluon")
    import mxnet as mx

    features = mx.nd.array(user.feed(records(5, 3), "prediction", None)[0])
    expected = made.model(features).asnumpy()
    files = [str(tmp_path / "of_state" / name) for name in ("model-symbol.json", "model-0000.params")]
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    np.testing.assert_array_equal(plain(features).asnumpy(), expected)
    for weights in (tmp_path / "exported", tmp_path / "saved.params", tmp_path / "of_state", state):
        np.testing.assert_array_equal(predictions(user, weights)["prediction"], expected)


def test_several_inputs_and_outputs_have_numbers(tmp_path: Path) -> None:
    import mxnet as mx

    class Pair(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.one = mx.gluon.nn.Dense(3)

        def hybrid_forward(self, F: Any, first: Any, second: Any) -> Any:
            return self.one(first), first + second

    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = np.asarray(raw, np.float32)
        return (rows[:, :4], rows[:, :4]), rows[:, 4]

    user = made_of(
        Pair,
        loss=lambda labels, outputs: mx.gluon.loss.SoftmaxCELoss()(outputs[0], labels),
        feed=feed,
        eval_metrics_fn=lambda: {"output1": {"mean": lambda labels, outputs: outputs.mean()}},
    )
    made = adapter_of(user)
    made.evaluator(None).prepare(records(3))
    made.export(str(tmp_path / "pair"), "gluon")
    found = predictions(user, tmp_path / "pair")
    assert {name: one.shape for name, one in found.items()} == {"output0": (5, 3), "output1": (5, 4)}
    files = [str(tmp_path / "pair" / name) for name in ("model-symbol.json", "model-0000.params")]
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data0", "data1"], files[1])
    features = [mx.nd.array(one) for one in feed(records(5, 3), "prediction", None)[0]]
    np.testing.assert_array_equal(plain(*features)[0].asnumpy(), found["output0"])


class Evil:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def test_what_is_no_file_of_parameters_is_refused(tmp_path: Path) -> None:
    user = made_of(dense)
    adapter_of(user).export(str(tmp_path / "model"), "gluon")
    whole = (tmp_path / "model/model-0000.params").read_bytes()
    file = tmp_path / "x.params"
    damaged = [
        b"", whole[:-1], whole + b"-", whole[: len(whole) // 2], pickle.dumps(Evil()), b"x" * 100,
        whole[:16] + (2**60).to_bytes(8, "little") + whole[24:],  # so many arrays
        whole[:36] + (2**60).to_bytes(8, "little") + whole[44:],  # such a dimension
    ]  # fmt: skip
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(BadModel, match=r"x.params is damaged, or no file of parameters that a job"):
            predictions(user, file)
    with pytest.raises(BadModel, match=r"y.params can't be read: No such file"):
        predictions(user, tmp_path / "y.params")
    with pytest.raises(
        BadModel, match=r"model is of another model than that of m.py: .*; give the --model_def"
    ):
        predictions(made_of(convolution), tmp_path / "model")


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    state = GroupState(tmp_path, adapter_of(made_of(dense)).image())
    with pytest.raises(BadModel, match=r"is of another model than that of m.py: the state does not fit"):
        predictions(made_of(convolution), state)
