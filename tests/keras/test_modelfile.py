"""Loading a model file, and what only running it shows."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.errors import BadInput, BadModel
from elasticdl.keras.framework import FRAMEWORK
from tests.keras.conftest import HEAD, job, records

ModelFile = Callable[..., tuple]


def test_the_symbols_of_a_file(model_file: ModelFile) -> None:
    user, _ = model_file(
        "def mine(*, a): ...\ndef custom_data_reader(data_origin): ...", optimizer="optimizer"
    )
    assert user.path.name.startswith("model_file_")
    assert user.loss.__name__ == "loss"
    assert user.custom_data_reader.__name__ == "custom_data_reader"
    assert user.callbacks is None


def test_other_names_and_other_files(model_file: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "losses.py").write_text("def absolute(labels, predictions): ...\n")
    user, _ = model_file("def other(): ...", loss="parts.losses.absolute", optimizer="other")
    assert user.loss.__name__ == "absolute"
    assert user.optimizer.__name__ == "other"


def test_files_of_the_zoo_import_each_other(model_file: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "shared_part.py").write_text("def feed(dataset, mode, metadata): return 7\n")
    user, _ = model_file("from shared_part import feed")
    assert user.feed(None, None, None) == 7


def test_the_file_that_is_named_is_loaded_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package `digits` is installed, and the zoo has a folder of that name with files that import each other."""
    (tmp_path / "site" / "digits").mkdir(parents=True)
    (tmp_path / "site" / "digits" / "__init__.py").write_text("whose = 'installed'\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = tmp_path / "named_zoo" / "digits"
    folder.mkdir(parents=True)
    (folder / "parts.py").write_text("whose = 'zoo'\n")
    (folder / "model.py").write_text(
        HEAD + "import digits\nfrom . import parts\nfrom named_zoo.digits import parts as same\n"
        "assert same is parts\ndef feed(dataset, mode, metadata): return digits.whose, parts.whose\n"
    )
    user = FRAMEWORK.load(job(model_zoo=str(tmp_path / "named_zoo"), model_def="digits.model.custom_model"))
    assert user.path == folder / "model.py"
    assert user.feed(None, None, None) == ("installed", "zoo")


def test_an_import_of_the_earlier_generation_in_a_further_file(model_file: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "further_part.py").write_text("from elasticdl.python.ps import parameters\n")
    with pytest.raises(
        BadModel, match=r"a part of ElasticDL 0\.2; import Mode from elasticdl, .* \(docs/guides/"
    ):
        model_file("import further_part")


def test_parameters_reach_the_model(adapter: Callable[..., object]) -> None:
    source = """
    def custom_model(units, name="x", kind="", wanted="", function=""):
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(units)(inputs)), name=name)
    """
    made = adapter(
        source, model_params={"units": 5, "name": "mine", "kind": "a", "wanted": "b", "function": "c"}
    )
    assert (made.model.layers[1].units, made.model.name) == (5, "mine")


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("", {"loss": "lost"}, r"--loss names 'lost', which the file does not define; it defines .*custom_model"),
        ("", {"callbacks": "parts.callbacks"}, r"parts\.py: no such file"),
        ("optimizer = 3", {}, "optimizer is a int, expected a function"),
        ("loss = 3", {}, "loss is a int; expected a function loss"),
        ("def feed(dataset): ...", {}, r"feed\(dataset\) can't be called as feed\(…, …, …\): too many positional arguments"),
        ("def optimizer(lr): ...", {}, r"can't be called as optimizer\(\): missing a required argument: 'lr'"),
        ("", {"model_params": {"depth": 3}}, r"custom_model\(\) can't be called as custom_model\(depth=…\): .*'depth'"),
        ("import no_such_module", {}, r"importing it failed: ModuleNotFoundError: No module named 'no_such_module' \(line \d+\)"),
        ("1 / 0", {}, r"importing it failed: ZeroDivisionError: division by zero \(line \d+\)"),
    ],
)  # fmt: skip
def test_what_loading_shows(model_file: ModelFile, source: str, settings: dict, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        model_file(source, **settings)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"absent\.py: no such file; --model_def a\.b\.symbol is"):
        FRAMEWORK.load(job(model_zoo=str(tmp_path), model_def="absent.custom_model"))


def test_a_file_that_failed_is_imported_anew(model_file: ModelFile, tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("1 / 0")
    spec = job(model_zoo=str(tmp_path), model_def="mended.custom_model")
    with pytest.raises(BadModel):
        FRAMEWORK.load(spec)
    path.write_text(HEAD + "\n# longer than before\n")
    assert FRAMEWORK.load(spec).path == path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def custom_model():\n    return 3", "custom_model returned a int; expected a keras.Model"),
        ("def custom_model():\n    raise KeyError('x')", r"custom_model failed: KeyError: 'x' \(line \d+\)"),
        ("def optimizer():\n    return 'sgd'", "optimizer returned a str; expected a Keras optimizer"),
        ("def custom_model():\n    i = keras.Input((3,))\n    return keras.Model(i, i)", "the model has no trainable variables"),
        ("def loss(labels, predictions):\n    return tf.reduce_mean(labels)", "the loss does not depend on any trainable variable"),
        ("def loss(labels, predictions):\n    return None", "expected a scalar or one value per example, received None"),
        ("def loss(labels, predictions):\n    return tf.cast(labels[0], tf.int32)", "expected a loss of a float type, received int32"),
        ("def loss(labels, predictions):\n    return labels.nothing", r"the first training step failed: AttributeError: .* \(line \d+\)"),
        ("def loss(labels, predictions):\n    return predictions + tf.zeros((5, 5))", r"Incompatible shapes: \[4,1\] vs\. \[5,5\]"),
        ("def callbacks():\n    return 1 / 0", "callbacks failed: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_preparing_shows(adapter: Callable[..., object], source: str, message: str) -> None:
    with pytest.raises(BadModel, match=message) as caught:
        adapter(source, sample=records(4))
    assert "model_file_" in str(caught.value)
    if "failed" in message:
        assert "model_file_" in "".join(traceback.format_exception(caught.value.__cause__))


LOOKING_UP = """
class Table(keras.layers.Embedding):
    def call(self, inputs):
        return tf.gather(self.embeddings, inputs)
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(Table(5, 2)(inputs))))
"""
SUBCLASSED = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(5, 2)
    def call(self, inputs):
        return self.table({"no": inputs})
def custom_model():
    return Own()
"""
SEQUENTIAL = """
def custom_model():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
"""
NO_LABEL = """
def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (tf.zeros(3), tf.zeros(1)[1:]))
"""
SYMBOL = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(tf.nn.relu(inputs)))
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (LOOKING_UP, r"the first training step failed: TypeError: Value passed to parameter 'indices' has DataType float32 .* "
         r"\(in Table\.call\(\)\) \(line \d+\)"),
        (SUBCLASSED, r"the model can't take what feed gives \(expected .*\): \w+: (?!Exception).* \(in .*call\(\)\) \(line \d+\)"),
        (SEQUENTIAL, r"the model can't take what feed gives \(expected features float32 \[None, 5\], received float32 \[None, 3\]\): .*"),
        (NO_LABEL, r"feed makes labels without values, float32 \[8, 0\] of the first 8 records; does it take a column .*"),
        (SYMBOL, r"custom_model failed: ValueError: A KerasTensor cannot be used as input to a TensorFlow function\..*\. \(line \d+\)"),
    ],
    ids=["layer", "model", "sequential", "label", "symbol"],
)  # fmt: skip
def test_the_first_line_of_an_error_says_why(
    adapter: Callable[..., object], source: str, message: str
) -> None:
    with pytest.raises(BadInput) as caught:
        adapter(source)
    said = str(caught.value)
    assert re.search(message + "$", said.splitlines()[0]), said
    for noise in ("\x1b", "Arguments received", "```", "Exception encountered"):
        assert noise not in said
