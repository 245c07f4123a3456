"""The check of a model file by its syntax tree."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from elasticdl.errors import BadModel
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.modelfile import ModelFile, check_model_file
from elasticdl.spec.zoo import resolve

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
    for name in ("losses", "models"):
        (tmp_path / f"{name}.py").touch()
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
            "import numpy as np\n" + GOOD,
            {"feed": "nope"},
            "/model.py: does not define 'nope' (--feed); expected feed(",
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
        (GOOD, {"eval_metrics_fn": "mine"}, "/model.py: does not define 'mine' (--eval_metrics_fn)"),
        (
            GOOD + "def eval_metrics_fn(labels): ...\n",
            {},
            "expected eval_metrics_fn(), received eval_metrics_fn(labels), which needs 'labels', which nothing gives",
        ),
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


NO_MODELS = {
    "custom_model = 5": ":1: custom_model is 5, expected custom_model()",
    "custom_model = [keras]": ":1: custom_model is a list, expected custom_model()",
    "async def custom_model(): return 1": ":1: custom_model is a coroutine (async def), expected custom_model()",
    "def custom_model():\n  def inner(): return 1\n  keras.Sequential([])": ":1: custom_model never returns a value, "
    "expected custom_model(), which returns one",
    "def feed(dataset, mode, metadata): dataset.map(lambda row: row)": ":1: feed never returns a value, expected feed(",
    "import kers": ":1: imports 'kers', which is neither installed nor in the model zoo {zoo}; did you mean keras?",
    "from zoo.parts import network": ":1: imports 'network' from {zoo}/zoo/parts.py, which does not define it; did you mean networks?",
    "from .parts import network": ":1: imports 'network' from {zoo}/zoo/parts.py, which does not define it",
    "from zoo.package import layer": ":1: imports 'layer' from {zoo}/zoo/package/__init__.py, which does not "
    "define it; did you mean layers?",
}


@pytest.mark.parametrize("source", NO_MODELS)
def test_what_is_certainly_no_model_is_found_before_anything_starts(tmp_path: Path, source: str) -> None:
    (tmp_path / "zoo" / "package").mkdir(parents=True)
    (tmp_path / "zoo" / "parts.py").write_text("def networks(): return 1\n")
    (tmp_path / "zoo" / "package" / "__init__.py").write_text("from zoo.package.inner import layers\n")
    (tmp_path / "zoo" / "package" / "inner.py").write_text("layers = 3\n")
    name = source.removeprefix("async ").removeprefix("def ").partition("(")[0].partition(" ")[0]
    said = refusal(tmp_path, GOOD.replace(f"def {name}(", "def other(") + f"\n{source}")
    before = GOOD.count("\n") + 1
    assert f"/model.py{NO_MODELS[source].replace(':1:', f':{before + 1}:').format(zoo=tmp_path)}" in said


def test_a_file_of_the_zoo_that_is_imported_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "parts.py").write_text("def f(:\n")
    with pytest.raises(BadModel, match=r"zoo/parts\.py:1: invalid syntax\n    def f\(:$"):
        check(tmp_path, "from .parts import f\n" + GOOD)
    (tmp_path / "zoo" / "parts.py").write_text("import zoo.model\nimport nowhere\n")
    with pytest.raises(BadModel, match=r"zoo/parts\.py:2: imports 'nowhere', which is neither installed nor"):
        check(tmp_path, "from zoo import parts\nfrom .parts import nowhere\n" + GOOD)
    check(
        tmp_path, "from .parts import nowhere\n" + GOOD, image_name="x", job_name="x"
    )  # an image has other packages


def test_a_directory_and_a_file_that_are_taken_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "zoo" / "deep").mkdir(parents=True)
    (tmp_path / "zoo" / "deep" / "net.py").touch()
    said = refusal(tmp_path, GOOD, model_def="zoo.deep.custom_model")
    assert said.endswith(f"; {tmp_path}/zoo/deep is a directory, of which a file is named, too: net")
    said = refusal(tmp_path, GOOD, model_def="zoo.model.py")
    assert "does not define 'py' (--model_def); name the model function in it, not the file's suffix" in said


@pytest.mark.parametrize(
    "source",
    [
        "def __getattr__(name): return print",
        "globals()['custom_model'] = print",
        "import sys\nsetattr(sys.modules[__name__], 'custom_model', print)",
        "for custom_model in (print,): ...",
        "with open('x') as custom_model: ...",
        "print(custom_model := print)",
        "match 3:\n  case 3:\n    def custom_model(): return 1",
        "def make():\n  global custom_model\n  custom_model = print\nmake()",
        "from .parts import custom_model",
        "from .stars import custom_model",
        "from zoo.package import custom_model",
        "from zoo import custom_model",
        "try:\n  import nowhere as custom_model\nexcept ImportError:\n  custom_model = print",
        "import sys\nsys.path.append('elsewhere')\nfrom nowhere import custom_model",
        "if True:\n  custom_model = 5",
        "@register\ndef custom_model(): ...; print()",
        "def custom_model(): yield 3",
        "def custom_model():\n  if True:\n    return 1",
        "def custom_model(): ...",
    ],
)  # fmt: skip
def test_models_that_only_running_shows_are_trusted(tmp_path: Path, source: str) -> None:
    (tmp_path / "zoo" / "package").mkdir(parents=True)
    (tmp_path / "zoo" / "parts.py").write_text(
        "import zoo.model\ntry:\n  from fast import custom_model\nexcept ImportError: ...\n"
    )
    (tmp_path / "zoo" / "stars.py").write_text("from os import *\n")
    (tmp_path / "zoo" / "package" / "__init__.py").touch()
    (tmp_path / "zoo" / "package" / "custom_model.py").touch()
    check(tmp_path, GOOD.replace("def custom_model", "def other") + f"\n{source}")


def test_what_the_tree_cannot_tell_is_trusted(tmp_path: Path) -> None:
    check(tmp_path, GOOD.replace("def feed(dataset, mode, metadata)", "@tf.function\ndef feed(whatever)"))
    check(tmp_path, GOOD.replace("def feed(dataset, mode, metadata)", "def feed(*anything)"))
    check(tmp_path, GOOD + "class custom_model(keras.Model): ...", model_params="units=3")


OLD = """
import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler, Early
import elasticai_api.common.data_shard_service as shards

def feed(dataset, mode, metadata):
    from elasticdl_preprocessing.layers import Hashing
    from elasticdl.python.common.constants import Mode
    return dataset
"""


def test_imports_of_the_earlier_generation_are_answered_with_their_successors(tmp_path: Path) -> None:
    lines = refusal(tmp_path, GOOD + OLD).splitlines()
    assert [line.partition(" was a part of ElasticDL 0.2; ")[::2] for line in lines[:-1]] == [
        (
            "/model.py:16: elasticdl.python.elasticdl.callbacks.Early",
            "use the callbacks of Keras",
        ),
        (
            f"{tmp_path}/zoo/model.py:17: elasticai_api.common.data_shard_service",
            "use elasticdl.torch, or elasticdl.init(), in a program that `elasticdl run` starts (docs/guides/moving.md)",
        ),
        (
            f"{tmp_path}/zoo/model.py:20: elasticdl_preprocessing.layers.Hashing",
            "import it at the top of the file",
        ),
        (
            f"{tmp_path}/zoo/model.py:21: elasticdl.python.common.constants.Mode",
            "import it at the top of the file",
        ),
    ]
    assert "Coming from ElasticDL 0.2" in lines[-1]
    page = re.search(r"\((docs/.*\.md)\)", lines[-1])
    assert page is not None
    assert (Path(__file__).resolve().parents[2] / page[1]).is_file()


def test_imports_in_other_files_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text("from elasticdl.python import ps\ndef mine(labels, predictions): ...")
    with pytest.raises(BadModel, match=r"losses\.py:1: elasticdl\.python\.ps was a part of ElasticDL 0\.2; "):
        check(tmp_path, GOOD, loss="losses.mine")


def test_imports_that_the_file_can_do_without_are_trusted(tmp_path: Path) -> None:
    guarded = """
    try:
        from elasticdl.python.common.constants import Mode
    except (AttributeError, ImportError):
        from elasticdl import Mode
    if TYPE_CHECKING:
        import elasticai_api
    import elasticdl.keras, elasticai_apis
    from .elasticai_api import mine
    """
    (tmp_path / "elasticai_apis.py").touch()
    check(tmp_path, GOOD + textwrap.dedent(guarded))
    with pytest.raises(BadModel, match="elasticai_api was"):
        check(tmp_path, GOOD + "try:\n    import elasticai_api\nexcept KeyError: ...")
    with pytest.raises(BadModel, match="elasticai_api was"):
        check(tmp_path, GOOD + "try:\n    import fast\nexcept ImportError:\n    import elasticai_api")


def test_layers_that_were_copied_into_the_zoo_are_its_own(tmp_path: Path) -> None:
    source = GOOD + "from elasticdl_preprocessing.layers import Mine"
    assert "elasticdl_preprocessing.layers.Mine was a part" in refusal(tmp_path, source)
    (tmp_path / "elasticdl_preprocessing").mkdir()
    check(tmp_path, source)


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("def callbacks(): return [keras.callbacks.EarlyStopping(restore_best_weights=True)]", 1,
         "EarlyStopping: restore_best_weights=True would keep weights"),
        ("from keras.callbacks import CSVLogger as C\ncallbacks = lambda: [C('x')]", 2, "the callback CSVLogger is not possible"),
        ("import tensorflow as tf\ndef callbacks():\n  made = tf.keras.callbacks.ModelCheckpoint('x')\n  return [made]", 3,
         "the callback ModelCheckpoint is not possible with parameter servers; use --checkpoint_dir, with --checkpoint_best=METRIC"),
        ("class A(keras.callbacks.Callback):\n  def on_batch_end(self, e, logs): ...\nclass B(A): ...\n"
         "def callbacks():\n  found = []\n  found.append(B())\n  return found", 6, "B is called by batch"),
        ("def callbacks(): return keras.callbacks.LambdaCallback(on_train_batch_end=print)", 1, "LambdaCallback is called by batch"),
    ],
)  # fmt: skip
def test_callbacks_that_are_not_possible_with_servers_are_refused(
    tmp_path: Path, source: str, line: int, why: str
) -> None:
    before = GOOD.count("\n")
    said = refusal(tmp_path, GOOD + source, num_ps_pods=2)
    assert said.startswith(f"/model.py:{before + line}: {why}")
    assert "callbacks" in check(tmp_path, GOOD + source).found


@pytest.mark.parametrize(
    "source",
    [
        "def callbacks(): return [keras.callbacks.EarlyStopping(), keras.callbacks.History()]",
        "from keras.callbacks import LambdaCallback as C\ncallbacks = lambda: [C(on_epoch_end=print)]",
        "class A(keras.callbacks.Callback):\n  def on_epoch_end(self, e, logs): ...\ndef callbacks(): return [A()]",
    ],
)
def test_callbacks_that_follow_epochs_are_taken_with_servers(tmp_path: Path, source: str) -> None:
    assert "callbacks" in check(tmp_path, GOOD + source, num_ps_pods=2).found


OTHER = "import keras\nclass Mine(keras.callbacks.Callback):\n  def on_batch_end(self, e, logs): ...\n"


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("from zoo.other_callbacks import Mine", "Mine"),
        ("import zoo.other_callbacks as other", "other.Mine"),
        ("import zoo.other_callbacks", "zoo.other_callbacks.Mine"),
        ("from .other_callbacks import Mine", "Mine"),
        ("from . import other_callbacks", "other_callbacks.Mine"),
        ("from own_zoo.zoo.other_callbacks import Mine as Other", "Other"),
        ("from zoo.between import Mine", "Mine"),
        ("from zoo.between import Base\nclass Mine(Base): ...", "Mine"),
    ],
)
def test_callbacks_of_another_file_of_the_zoo_are_refused_too(
    tmp_path: Path, imported: str, made: str
) -> None:
    zoo = tmp_path / "own_zoo"
    (zoo / "zoo").mkdir(parents=True)
    (zoo / "zoo" / "other_callbacks.py").write_text(OTHER)
    (zoo / "zoo" / "between.py").write_text(
        "from .other_callbacks import Mine\nimport zoo.other_callbacks as o\nclass Base(o.Mine): ...\n"
    )
    source = f"{GOOD}{imported}\ndef callbacks(): return [{made}()]"
    with pytest.raises(BadModel, match=r"model\.py:\d+: Mine is called by batch"):
        check(zoo, source, num_ps_pods=2)
    assert "callbacks" in check(zoo, source).found


@pytest.mark.parametrize(
    "source",
    [
        "from zoo.other_callbacks import Mine\ndef Mine(): ...\ndef callbacks(): return [Mine()]",
        "try:\n  from fast import Mine\nexcept ImportError:\n  from zoo.other_callbacks import Mine\n"
        "def callbacks(): return [Mine()]",
        "from json.other_callbacks import Mine\ndef callbacks(): return [Mine()]",  # an installed package comes first
        "from zoo.loop import Mine\ndef callbacks(): return [Mine()]",
        "from ....other_callbacks import Mine\ndef callbacks(): return [Mine()]",
        "from . import Mine\ndef callbacks(): return [Mine()]",
        "def callbacks(): return [make().other_callbacks.Mine()]",
        "def callbacks():\n  other_callbacks = make()\n  return [other_callbacks.Mine()]",
    ],
)
def test_callbacks_are_trusted_where_an_import_may_lead_elsewhere(tmp_path: Path, source: str) -> None:
    for name in (".", "zoo", "json"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "other_callbacks.py").write_text(OTHER)
    (tmp_path / "zoo" / "loop.py").write_text("from zoo.loop import Mine")
    assert "callbacks" in check(tmp_path, GOOD + source, num_ps_pods=2).found


@pytest.mark.parametrize(
    "source",
    [
        "def callbacks(): return []",
        "def callbacks():\n  if fast:\n    return [keras.callbacks.History()]\n  return []",
        "import json as mine\ndef callbacks(): return [mine.History()]",
        "class A(keras.callbacks.Callback):\n  def on_train_end(self, logs): ...\ndef callbacks(): return [A()]",
        "def callbacks(): return [keras.callbacks.LambdaCallback(on_train_end=print)]",
        "callbacks = make()",
        "class A(A):\n  pass\ndef callbacks(): return [A(), (lambda: 1)()]",
    ],
)
def test_callbacks_of_which_the_tree_shows_no_steps_are_trusted(tmp_path: Path, source: str) -> None:
    assert "callbacks" in check(tmp_path, GOOD + source, num_ps_pods=2).found


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
