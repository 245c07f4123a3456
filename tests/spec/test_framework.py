"""Which framework a job's model file is of, and how its result is written."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from elasticdl.errors import BadInput
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.framework import framework_of, output_format
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.modelfile import check_model_file

REST = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(records, mode, metadata): ...
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    (tmp_path / "helpers").mkdir()
    return tmp_path


def job(zoo: Path, source: str, **settings: object) -> JobSpec:
    (zoo / "m.py").write_text(textwrap.dedent(source) + REST)
    asked = {"model_zoo": str(zoo), "model_def": "m.custom_model", "training_data": "x"}
    return build(from_arguments(asked | settings))


def refusal(zoo: Path, source: str, **settings: object) -> str:
    with pytest.raises(BadInput) as caught:
        check_model_file(job(zoo, source, **settings))
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import keras", "keras"),
        ("from keras import layers", "keras"),
        ("def later():\n    import tensorflow as tf", "keras"),
        ("from elasticdl.keras import Embedding", "keras"),
        ("from elasticdl.reference import Softmax", "reference"),
        ("from elasticdl import reference", "reference"),
        ("import elasticdl.reference as r", "reference"),
        ("from torch import nn", "torch"),
        ("from elasticdl.torch import Callback", "torch"),
        ("import jax.numpy as jnp", "jax"),
        ("from flax import nnx", "jax"),
        ("import optax", "jax"),
        ("from elasticdl.jax import Callback", "jax"),
        ("from mxnet.gluon import nn", "mxnet"),
        ("import tensorflow as tf, tf_keras", "tf_keras"),
        ("import tensorflow as tf\ndef f():\n    tf.keras.layers.DenseFeatures([])", "tf_keras"),
        ("from tensorflow.keras import layers\nlayers.DenseFeatures([])", "tf_keras"),
        ("import tensorflow.keras.optimizers as o\no.legacy.SGD(0.1)", "tf_keras"),
        (
            "import tensorflow as tf\ntry:\n    O = tf.keras.optimizers.legacy\nexcept ImportError:\n    O = 3",
            "keras",
        ),
        ("import tensorflow as tf\ntf.feature_column.numeric_column('x')", "keras"),
        ("from elasticdl.python.elasticdl.feature_column import feature_column", "tf_keras"),
        ("from elasticdl.python.elasticdl.layers.embedding import Embedding", "keras"),  # is of both
        ("import numpy", "keras"),  # as nothing says it
        ("import kerasish, elasticdl.references", "keras"),
        ("from helpers import base", "reference"),
        ("from helpers.base import *", "reference"),
        ("import helpers.base", "reference"),
    ],
)
def test_a_files_imports_tell_its_framework(zoo: Path, source: str, name: str) -> None:
    (zoo / "helpers/base.py").write_text("import m\nfrom elasticdl.reference import Softmax")  # a circle ends
    assert framework_of(job(zoo, source)).name == name


def test_a_job_may_name_its_framework(zoo: Path) -> None:
    assert framework_of(job(zoo, "import keras", framework="reference")).name == "reference"
    unknown = refusal(zoo, "", framework="kers")
    assert (
        unknown
        == "--framework: 'kers' is not installed; did you mean keras?; there are jax, keras, keras_jax, keras_torch, mxnet, reference, "
        "tf_keras, torch"
    )


def test_two_frameworks_in_one_file_are_a_question(zoo: Path) -> None:
    refused = refusal(zoo, "import keras\nimport elasticdl.reference")
    assert refused == f"{zoo / 'm.py'}: imports keras and reference; say which trains it: --framework=keras"


def test_both_versions_of_keras_in_one_file_are_a_question(zoo: Path) -> None:
    assert "imports keras and tf_keras; say which trains it" in refusal(zoo, "import keras, tf_keras")


def test_a_file_that_cannot_be_read_is_refused_by_the_check(zoo: Path) -> None:
    assert "invalid syntax" in refusal(zoo, "import keras keras")


@pytest.mark.parametrize(
    ("source", "settings", "form"),
    [
        ("import keras", {}, ("keras", ".keras")),
        ("import keras", {"output_format": "saved_model"}, ("saved_model", "")),
        ("import keras", {"output_format": "KERAS"}, ("keras", ".keras")),
        ("import keras", {"output_format": "parquet", "num_ps_pods": 1}, ("parquet", "")),
        ("import elasticdl.reference", {}, ("npz", ".npz")),
        ("import elasticdl.reference", {"output_format": "parquet", "num_ps_pods": 1}, ("parquet", "")),
    ],
)
def test_the_first_format_of_the_framework_is_used_unless_a_job_says_otherwise(
    zoo: Path, source: str, settings: dict[str, object], form: tuple[str, str]
) -> None:
    spec = job(zoo, source, **settings)
    found = output_format(spec, framework_of(spec))
    assert (found.name, found.suffix) == form
    assert check_model_file(spec).format == found


@pytest.mark.parametrize(
    ("source", "settings", "said"),
    [
        (
            "import keras",
            {"output": "m"},
            "write --output=m.keras, or use --output_format=saved_model for a directory",
        ),
        ("import keras", {"output": "m.npz"}, "in the format keras ends in .keras, received 'm.npz'"),
        (
            "import elasticdl.reference",
            {"output": "m/"},
            "in the format npz ends in .npz, received 'm/'; write --output=m.npz",
        ),
        (
            "import keras",
            {"output": "m.keras", "output_format": "saved_model"},
            "--output_format=saved_model writes a directory; use --output_format=keras, or name a directory",
        ),
        (
            "import keras",
            {"output_format": "savedmodel"},
            "expected keras, saved_model, received 'savedmodel'; did you mean saved_model?",
        ),
        ("import elasticdl.reference", {"output_format": "keras"}, "expected npz, received 'keras'"),
    ],
)
def test_results_that_do_not_fit_are_refused(
    zoo: Path, source: str, settings: dict[str, object], said: str
) -> None:
    assert said in refusal(zoo, source, **settings)


def test_what_a_framework_needs_of_a_file_is_checked(zoo: Path) -> None:
    (zoo / "m.py").write_text("import elasticdl.reference\ndef custom_model(): ...\ndef feed(records): ...\n")
    spec = build(from_arguments({"model_zoo": str(zoo), "model_def": "m.custom_model", "training_data": "x"}))
    with pytest.raises(BadInput, match=r"expected feed\(records, mode, metadata\), received feed\(records\)"):
        check_model_file(spec)


def test_servers_need_a_framework_that_has_them(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework.find("reference").__class__, "has_ps", False)
    assert refusal(zoo, "import elasticdl.reference", num_ps_pods=2).endswith(
        "--num_ps_pods=2: reference does not train with parameter servers"
    )
