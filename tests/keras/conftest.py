"""Adapters made from the source of a model file."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.cluster.cluster import process_name
from elasticdl.keras import runtime

runtime.start(1)

from elasticdl.keras.adapter import KerasAdapter  # noqa: E402  # TensorFlow is imported with its settings first
from elasticdl.keras.framework import FRAMEWORK  # noqa: E402
from elasticdl.spec.jobspec import JitCompile, JobSpec  # noqa: E402
from elasticdl.worker.contract.usermodel import UserModel  # noqa: E402
from tests.job.conftest import small_disk  # noqa: E402, F401  # a fixture

ZOO = Path(__file__).parents[2] / "model_zoo"

HEAD = """
import keras
import numpy as np
import tensorflow as tf

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))

def optimizer(lr=0.02):
    return keras.optimizers.SGD(lr)

def feed(dataset, mode, metadata):
    # a record: comma-separated floats, the last one is the label
    def parse(record):
        values = tf.strings.to_number(tf.strings.split(tf.expand_dims(record, 0), ",").to_tensor()[0])
        values = tf.ensure_shape(values, [4])
        return values[:3], values[3:]
    return dataset.map(parse)

def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))
"""
"""A linear model on three numbers; what a test defines after it takes the place of what is here."""

_numbers = itertools.count()


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[..., UserModel]:
    """Load a model file from its source."""

    def make(source: str = "", head: str = HEAD, **settings: object) -> tuple[UserModel, JobSpec]:
        name = f"model_file_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(source))
        spec = job(model_zoo=str(tmp_path), model_def=f"{name}.custom_model", **settings)
        return FRAMEWORK.load(spec), spec

    return make


@pytest.fixture
def adapter(model_file: Callable[..., tuple[UserModel, JobSpec]]) -> Callable[..., KerasAdapter]:
    """Make a prepared adapter from a model file's source."""

    def make(
        source: str = "",
        sample: list[object] | None = None,
        head: str = HEAD,
        process: str = "worker-0-1",
        **settings: object,
    ) -> KerasAdapter:
        made = KerasAdapter(*model_file(source, head, **settings), process=process_name(process))
        made.prepare(sample if sample is not None else records(8))
        return made

    return make


def job(**settings: object) -> JobSpec:
    """Return a JobSpec with few settings; XLA off unless asked for."""
    settings.setdefault("training_data", "data")
    settings.setdefault("minibatch_size", 8)
    settings["jit_compile"] = JitCompile(settings.get("jit_compile", "off"))
    return JobSpec(**settings)


def records(count: int, start: int = 0, columns: int = 4) -> list[bytes]:
    """Return records of small whole numbers, a function of their place."""
    rows = ([(7 * r + 3 * c + r * c) % 9 - 4 for c in range(columns)] for r in range(start, start + count))
    return [",".join(map(str, row)).encode() for row in rows]
