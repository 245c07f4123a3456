"""The check of a model file by its syntax tree."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from elasticdl.errors import BadModel
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.modelfile import ModelFile, check_model_file, resolve

GOOD = """
import keras
from keras.losses import sparse_categorical_crossentropy as loss

def custom_model(units=10, *, name=None):
    return keras.Sequential()

def optimizer(lr=0.1):
    return keras.optimizers.SGD(lr)

def feed(dataset, mode, metadata):
    return dataset
"""


def check(tmp_path: Path, source: str, **settings: object) -> ModelFile:
    (tmp_path / "zoo").mkdir(exist_ok=True)
    (tmp_path / "zoo" / "model.py").write_text(textwrap.dedent(source))
    asked = {"model_zoo": str(tmp_path), "model_def": "zoo.model.custom_model", "training_data": "x"}
    return check_model_file(build(from_arguments(asked | settings)))


def refusal(tmp_path: Path, source: str, **settings: object) -> str:
    with pytest.raises(BadModel) as caught:
        check(tmp_path, source, **settings)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "zoo"))
    return text.removeprefix(str(tmp_path / "zoo"))


def test_a_good_file(tmp_path: Path) -> None:
    found = check(tmp_path, GOOD, model_params="units=3; name='x'")
    assert found.path == tmp_path / "zoo" / "model.py"
    assert found.symbol == "custom_model"
    assert found.found == {"model_def", "feed", "loss", "optimizer"}
    assert not found.custom_reader


def test_optional_symbols_are_found(tmp_path: Path) -> None:
    source = (
        GOOD
        + "def callbacks(): ...\ndef custom_data_reader(data_origin, records_per_task=None, **params): ...\n"
    )
    found = check(tmp_path, source, data_reader_params="sep=','")
    assert found.custom_reader
    assert "callbacks" in found.found


def test_ways_to_define(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import numpy, losses as loss
        if True:
            def custom_model(): ...
        try:
            from fast import feed
        except ImportError:
            from slow import feed
        optimizer, other = make()
        """,
    )
    check(tmp_path, "from models import *")
    check(
        tmp_path,
        """
        class custom_model(Model):
            def __init__(self, units): ...
        loss: Loss = MeanSquaredError()
        optimizer = lambda: 1
        feed = functools.partial(parse, 3)
        """,
        model_params="units=1",
    )


def test_symbols_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text("def mine(labels, predictions): ...")
    check(tmp_path, GOOD, loss="losses.mine")
    with pytest.raises(BadModel) as caught:
        check(tmp_path, GOOD, loss="losses.yours")
    assert str(caught.value).startswith(f"{tmp_path}/losses.py: does not define 'yours' (--loss)")


@pytest.mark.parametrize(
    ("source", "settings", "said"),
    [
        ("def f(:\n  pass", {}, "/model.py:1: invalid syntax\n    def f(:"),
        (
            GOOD.replace("def feed", "def fed"),
            {},
            "/model.py: does not define 'feed' (--feed); did you mean fed?; expected feed(",
        ),
        (
            GOOD,
            {"model_def": "zoo.model.custom_modle"},
            "/model.py: does not define 'custom_modle' (--model_def); did you mean",
        ),
        (
            GOOD,
            {"model_def": "zoo.modle.custom_model"},
            "/modle.py: No such file or directory; --model_def=zoo.modle.custom_model",
        ),
        (GOOD, {"callbacks": "mine"}, "/model.py: does not define 'mine' (--callbacks)"),
        (
            GOOD,
            {"model_params": "unit=3"},
            "/model.py:5: expected custom_model(unit=3), received custom_model(units=10, *, name=None), "
            "which does not take 'unit'; did you mean units?",
        ),
        (
            GOOD.replace("dataset, mode, metadata", "dataset, mode"),
            {},
            "/model.py:11: expected feed(dataset, mode, metadata), received feed(dataset, mode), which takes 2 of the 3 arguments",
        ),
        (
            GOOD.replace("lr=0.1", "lr"),
            {},
            "/model.py:8: expected optimizer(), received optimizer(lr), which needs 'lr'",
        ),
        (GOOD.replace("*, name=None", "*, name"), {}, "which needs 'name', which nothing gives"),
        (
            GOOD + "loss = lambda labels: 0",
            {},
            "expected loss(labels, predictions), received loss(labels), which takes 1 of",
        ),
        (
            GOOD + "def custom_data_reader(origin, records_per_task=None): ...",
            {"data_reader_params": "sep=','"},
            "expected custom_data_reader(data_origin, records_per_task=None, sep=','), received",
        ),
        (
            "class custom_model:\n    def __init__(self, units): ...\n"
            + GOOD.replace("def custom_model", "def x"),
            {},
            "which needs 'units'",
        ),
    ],
)
def test_mistakes(tmp_path: Path, source: str, settings: dict[str, object], said: str) -> None:
    assert said in refusal(tmp_path, source, **settings)


def test_what_the_tree_cannot_tell_is_trusted(tmp_path: Path) -> None:
    check(tmp_path, GOOD.replace("def feed(dataset, mode, metadata)", "@tf.function\ndef feed(whatever)"))
    check(tmp_path, GOOD.replace("def feed(dataset, mode, metadata)", "def feed(*anything)"))
    check(tmp_path, GOOD + "class custom_model(keras.Model): ...", model_params="units=3")


def test_strange_bytes(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for content in (b"\0", b"\xff\xfe", b"x = '\xe4'", b"(" * 10_000):
        (tmp_path / "zoo" / "model.py").write_bytes(content)
        asked = {"model_zoo": str(tmp_path), "model_def": "zoo.model.custom_model", "training_data": "x"}
        with pytest.raises(BadModel, match=r"model\.py"):
            check_model_file(build(from_arguments(asked)))


def test_resolve() -> None:
    assert resolve("zoo", "a.b.c") == (Path("zoo/a/b.py"), "c")
    assert resolve("zoo", "b.c") == (Path("zoo/b.py"), "c")
