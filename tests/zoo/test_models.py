"""The model zoo's entries on data of their tools: made, trained, evaluated, exported, and what is exported predicts what the model does."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.control.protocol.metricstates import combine
from elasticdl.data.plan.tasks import Task
from elasticdl.data.readers.reader import Reader, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.framework import FRAMEWORK
from elasticdl.spec.jobspec import JobKind
from tests.keras.conftest import ZOO, job

from . import originals

BATCH = 20
MADE: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "census": (originals.census, "--files={}"),
    "heart": (originals.heart, "--file={}/processed.cleveland.data"),
    "churn": (originals.churn, "--file={}/WA_Fn-UseC_-Telco-Customer-Churn.csv"),
    "cifar10": (originals.cifar, "--files={}"),
    "resnet50": (originals.fashion, "--idx={}"),
    "glosses": (originals.wordnet, "--files={}"),
}
"""Entry → what writes its original files, and the option that takes them."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make an entry's data with its tool, once."""
    folders: dict[str, Path] = {}

    def make(entry: str) -> Path:
        if entry not in folders:
            write, option = MADE[entry]
            source, folders[entry] = (
                tmp_path_factory.mktemp(f"{entry}-{kind}") for kind in ("original", "data")
            )
            write(source)
            tool = importlib.import_module(f"model_zoo.{entry}.make_data")
            assert tool.main([str(folders[entry]), option.format(source)]) == 0
        return folders[entry]

    return make


RESNET50, MOBILENET = functools.cache(keras.applications.ResNet50), keras.applications.MobileNetV2
"""Two entries have the same ResNet50, which takes seconds to make."""


def assert_like(small: keras.Model, whole: keras.Model) -> None:
    """Check that a small network has the layers and the ends of the one whose place it takes."""
    assert {type(one) for one in whole.layers} == {type(one) for one in small.layers}
    assert (whole.input_shape, whole.output_shape) == (small.input_shape, small.output_shape)


def small_mobilenet(
    input_shape: tuple[int, ...], *, alpha: float, weights: None, classes: int, classifier_activation: None
) -> keras.Model:
    """Take the place of Keras' MobileNetV2, as `small_body` does of ResNet50: its first blocks with few filters, and its end."""
    layers = keras.layers

    def normal(x: Any) -> Any:
        return layers.BatchNormalization(epsilon=1e-3, momentum=0.999)(x)

    def active(x: Any) -> Any:
        return layers.ReLU(6.0)(normal(x))

    def pointwise(x: Any, filters: int) -> Any:
        return layers.Conv2D(filters, 1, padding="same", use_bias=False)(x)

    inputs = keras.Input(input_shape)
    x = active(layers.Conv2D(8, 3, 2, padding="same", use_bias=False)(inputs))
    x = active(layers.DepthwiseConv2D(3, 2, use_bias=False)(layers.ZeroPadding2D(((0, 1), (0, 1)))(x)))
    x = normal(pointwise(x, 8))
    inner = active(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(active(pointwise(x, 16))))
    x = active(pointwise(layers.Add()([x, normal(pointwise(inner, 8))]), 32))
    x = layers.GlobalAveragePooling2D()(x)
    small = keras.Model(inputs, layers.Dense(classes, activation=classifier_activation)(x))
    whole = MOBILENET(
        input_shape,
        alpha=alpha,
        weights=weights,
        classes=classes,
        classifier_activation=classifier_activation,
    )
    assert_like(small, whole)
    return small


def small_body(
    *, weights: None, input_shape: tuple[int, ...], classes: int, classifier_activation: None
) -> keras.Model:
    """Take the place of Keras' ResNet50, whose trace takes half a minute: its first block, with fewer filters; Keras' own is just made."""
    layers = keras.layers

    def convolved(x: Any, filters: int, kernel: int, strides: int = 1) -> Any:
        convolution = layers.Conv2D(filters, kernel, strides, padding="valid" if kernel == 7 else "same")
        return layers.BatchNormalization(epsilon=1.001e-5)(convolution(x))

    def active(x: Any) -> Any:
        return layers.Activation("relu")(x)

    inputs = keras.Input(input_shape)
    x = active(convolved(layers.ZeroPadding2D(3)(inputs), 4, 7, 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    block = convolved(active(convolved(active(convolved(x, 4, 1)), 4, 3)), 16, 1)
    x = active(layers.Add()([convolved(x, 16, 1), block]))
    small = keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))
    whole = RESNET50(
        weights=weights,
        input_shape=input_shape,
        classes=classes,
        classifier_activation=classifier_activation,
    )
    assert_like(small, whole)
    return small


def records(reader: Reader, begin: int, end: int) -> Any:
    (shard,) = shards_of(reader)
    return reader.read(Task(0, 0, shard, 0, shard.count), range(begin, min(end, shard.count)))


@pytest.mark.parametrize(
    ("model_def", "params", "steps", "share"),
    [
        ("census.dnn_census.functional", {}, 60, 0.7),
        ("census.dnn_census.sequential", {}, 5, 1.0),
        ("census.dnn_census.subclassed", {}, 5, 1.0),
        ("census.wide_deep_census.custom_model", {}, 60, 0.7),
        ("heart.dnn_heart.custom_model", {}, 60, 0.7),
        ("churn.dnn_churn.custom_model", {}, 200, 0.7),
        ("cifar10.cifar10_functional_api.custom_model", {"filters": 4}, 5, None),
        ("cifar10.cifar10_mobilenet_v2.custom_model", {"alpha": 0.35}, 1, None),
        ("cifar10.cifar10_resnet50.custom_model", {}, 1, None),
        ("resnet50.resnet50_folders.custom_model", {"classes": 10, "side": 32}, 1, None),
        ("glosses.topics.custom_model", {}, 100, 0.7),
    ],
)
def test_an_entry(
    made: Callable[[str], Path],
    tmp_path: Path,
    model_def: str,
    params: dict[str, Any],
    steps: int,
    share: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`share`: of the loss of the held out records before, so much is left after a few steps; None: too few to say."""
    data = made(model_def.partition(".")[0])
    monkeypatch.setattr(keras.applications, "ResNet50", small_body)
    monkeypatch.setattr(keras.applications, "MobileNetV2", small_mobilenet)
    train, heldout = (open_reader(str(data / split), {}, tmp_path / split) for split in ("train", "heldout"))
    settings = {
        "model_zoo": str(ZOO),
        "model_def": model_def,
        "model_params": params,
        "minibatch_size": BATCH,
    }
    user = FRAMEWORK.load(job(**settings))
    adapter = KerasAdapter(user, job(**settings), train.metadata)
    adapter.prepare(records(train, 0, BATCH))
    evaluator = adapter.evaluator(heldout.metadata)
    evaluator.prepare(records(heldout, 0, BATCH))

    def evaluated() -> dict[str, Any]:
        evaluator.begin_task(0)
        for begin in range(0, min(shards_of(heldout)[0].count, 5 * BATCH), BATCH):
            evaluator.evaluate(evaluator.convert(records(heldout, begin, begin + BATCH)))
        return evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))

    before, count = evaluated(), shards_of(train)[0].count
    for step in range(1, steps + 1):
        begin = step * BATCH % (count - BATCH)
        result = adapter.compute(adapter.convert(records(train, begin, begin + BATCH)), step, 0)
        adapter.apply(np.array(adapter.accumulator()), result.examples)
    after = evaluated()
    assert np.isfinite(after["val_loss"])
    if share is not None:
        assert after["val_loss"] < share * before["val_loss"]

    adapter.export(str(tmp_path / "model.keras"), "keras")
    predicting = job(**settings, kind=JobKind.PREDICT, trained_model=str(tmp_path / "model.keras"))
    trained = FRAMEWORK.trained(user, predicting, heldout.metadata, tmp_path / "model.keras")
    few = records(heldout, 0, 3)
    trained.prepare(few)
    batch = trained.convert(few)
    (predicted,) = trained.predict(batch, 0, 0).values()
    plain = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(plain(batch.data[0], training=False), predicted, atol=1e-5)
