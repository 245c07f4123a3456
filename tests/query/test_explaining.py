"""What TO EXPLAIN asks for, shows, draws and writes; how importances are computed is tested in tests/tabular."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticdl
from elasticdl.cli import run as command
from elasticdl.errors import BadStatement, JobFailed
from elasticdl.query.registry import Store
from elasticdl.tabular import importance, template
from elasticdl.tabular.features import Input, Label, LabelKind, Network, Plan
from elasticdl.tabular.importance import Importance

ROWS = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, and a model of it that was never trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICDL_STORE", str(tmp_path / "store"))
    pq.write_table(
        pa.table({"age": [*range(ROWS)], "工资": [1.5] * ROWS, "rich": [True, False] * (ROWS // 2)}),
        "people.parquet",
    )
    inputs = (Input("age", "age", False), Input("工资", "c1", False))
    plan = Plan(inputs, (), (), Label("rich", LabelKind.BOOLEAN, (0, 1)), Network("dnn"), {}, True, ())
    with Store(tmp_path / "store").begin("rich") as entry:
        template.write(entry.directory, plan)
        (entry.directory / "model.keras").touch()
        entry.commit({"label": "rich", "columns": {"age": "integer", "工资": "number"}, "model_zoo": None})
    with Store(tmp_path / "store").begin("foreign") as entry:
        entry.commit({"label": None, "columns": {}, "model_zoo": "zoo"})
    with Store(tmp_path / "store").begin("line") as entry:
        np.savez(entry.directory / "model.npz", weights=np.array([2.0, 0.5, 0.0]), bias=np.zeros(1))
        entry.commit(
            {
                "label": "y",
                "columns": {"a": "number", "名/b": "number", "tag": "text"},
                "model_zoo": str(tmp_path / "zoo"),
                "model_def": "line.custom_model",
                "model_params": {},
                "file": "model.npz",
                "minibatch_size": 16,
            }
        )
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(LINE)
    draws = np.random.default_rng(1).standard_normal((2, ROWS))
    lines = {
        "a": draws[0],
        "名/b": draws[1],
        "tag": [f"t{n % 9}" for n in range(ROWS)],
        "y": 2 * draws[0] + 0.5 * draws[1],
    }
    pq.write_table(pa.table(lines), "lines.parquet")
    return tmp_path


LINE = """
import os, sys
import numpy as np
from elasticdl.reference import SGD, Linear

def custom_model():
    return Linear(3)

def optimizer():
    return SGD(0.01)

def feed(records, mode, metadata):
    print("as a program prints")
    if "WITHOUT" in os.environ:
        sys.exit(f"without {os.environ.get('PGPASSWORD')}")
    tags = np.array([float(tag[1:]) for tag in records["tag"]])
    return np.stack([records["a"], records["名/b"], tags], axis=1), records["y"]
"""


def test_outputs_of_a_model_of_a_table_are_known_before_its_job(folder: Path) -> None:
    text = "SELECT * FROM people TO PREDICT t.p WITH predict.extra_outputs=[{}] USING rich"
    with pytest.raises(
        BadStatement, match=r"^sql:1: the model has no output 'nope'; it has rich, probabilities\n"
    ):
        elasticdl.sql(text.format("nope"))
    assert command(["sql", text.format("probabilities"), "--dry_run"]) == 0
    with pytest.raises(
        BadStatement, match=r"^sql:1: the prediction and predict\.extra_outputs would both be"
    ):
        elasticdl.sql(text.format("probabilities").replace("t.p", "t.Probabilities"))
    (plan,) = folder.glob("store/rich/*/plan.json")
    plan.write_text("{}")
    with pytest.raises(
        BadStatement, match=r"the model rich@.* can't be used: .*/plan\.json: KeyError\('label'\); DROP"
    ):
        elasticdl.sql(text.format("nope"))


def test_a_model_without_its_file_and_labels_that_it_does_not_know_are_refused(folder: Path) -> None:
    unknown = r"150 of 300 rows have a value of rich that rich does not know: 2; it knows 0, 1; leave those rows out in the SELECT"
    with pytest.raises(BadStatement, match=unknown):
        elasticdl.sql("SELECT age, 工资, least(age % 4, 2) AS rich FROM people TO EXPLAIN rich")
    (file,) = folder.glob("store/rich/*/model.keras")
    file.unlink()
    with pytest.raises(
        BadStatement, match=r"the model rich@.* can't be used: there is no .*/model\.keras; DROP"
    ):
        elasticdl.sql("SELECT * FROM people TO EXPLAIN rich")


def test_a_model_of_a_zoo_by_its_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT * FROM lines TO EXPLAIN line INTO worth"
    answer = elasticdl.sql(text)
    assert answer.table is not None
    found = answer.table.to_pydict()
    assert found == pq.read_table("worth.parquet").to_pydict()
    assert found["feature"] == ["a", "名/b", "tag"]
    # E (w (x - x'))² = 2 w² for shuffled numbers of variance 1, and the loss before is 0
    assert found["importance"] == [pytest.approx(8, rel=0.3), pytest.approx(0.5, rel=0.3), 0.0]
    assert found["stddev"][:2] > [0.0, 0.0]
    assert elasticdl.sql(text.replace("worth", "again")).table == answer.table
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("WITHOUT", "1")
    with pytest.raises(JobFailed, match=r"^SystemExit: without None \(line 15 of .*/zoo/line\.py, in feed\)"):
        elasticdl.sql(text.replace("worth", "third"))
    assert not Path("third.parquet").exists()


IN_KERAS = """
import keras
import tensorflow as tf

def custom_model():
    columns = {name: keras.Input((), name=name) for name in ("a", "b", "tag")}
    row = keras.layers.Concatenate()([keras.layers.Reshape((1,))(one) for one in columns.values()])
    return keras.Model(columns, keras.layers.Dense(1)(row))

def loss(labels, predictions):
    return tf.square(labels - predictions[:, 0])

def optimizer():
    return keras.optimizers.SGD()

def feed(dataset, mode, metadata):
    def parse(record):
        tag = tf.strings.to_number(tf.strings.substr(record["tag"], 1, -1))
        return {"a": record["a"], "b": record["名/b"], "tag": tag}, tf.cast(record["y"], tf.float32)

    return dataset.map(parse)
"""
IN_TORCH = """
import numpy as np
import torch

def custom_model():
    return torch.nn.Linear(3, 1)

def loss(labels, outputs):
    return torch.nn.functional.mse_loss(outputs[:, 0], labels)

def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)

def feed(records, mode, metadata):
    tags = np.array([float(tag[1:]) for tag in records["tag"]])
    rows = np.stack([records["a"], records["名/b"], tags], axis=1).astype(np.float32)
    return rows, records["y"].astype(np.float32)
"""


def _write_keras(path: Path, weights: npt.NDArray[np.float32]) -> None:
    from elasticdl.keras import runtime

    runtime.import_keras()
    import keras

    columns = {name: keras.Input((), name=name) for name in ("a", "b", "tag")}
    row = keras.layers.Concatenate()([keras.layers.Reshape((1,))(one) for one in columns.values()])
    model = keras.Model(columns, keras.layers.Dense(1)(row))
    model.set_weights([weights.reshape(3, 1), np.zeros(1)])
    model.save(path)


def _write_torch(path: Path, weights: npt.NDArray[np.float32]) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.tensor(weights.reshape(1, 3)), "bias": torch.zeros(1)}, path)


@pytest.mark.parametrize(
    ("source", "file", "written"),
    [(IN_KERAS, "model.keras", _write_keras), (IN_TORCH, "model.pt", _write_torch)],
    ids=["keras", "torch"],
)
def test_models_of_a_zoo_in_other_frameworks(
    folder: Path, source: str, file: str, written: Callable[[Path, Any], None]
) -> None:
    version = Store(folder / "store").find("line")
    (folder / "zoo" / "line.py").write_text(source)
    with Store(folder / "store").begin("line") as entry:
        written(entry.directory / file, np.array([2.0, 0.5, 0.0], np.float32))
        entry.commit({**version.json, "file": file})
    answer = elasticdl.sql("SELECT * FROM lines TO EXPLAIN line")
    assert answer.table is not None
    found = answer.table.to_pydict()
    assert found["feature"] == ["a", "名/b", "tag"]
    assert found["importance"] == [pytest.approx(8, rel=0.3), pytest.approx(0.5, rel=0.3), 0.0]


def test_a_model_of_a_zoo_that_cannot_be_evaluated(folder: Path) -> None:
    for select, said in {
        'SELECT a, "名/b", tag, 1 AS other FROM lines': "the SELECT gives no column 'y'",
        "SELECT a, \"名/b\", 'x' || tag AS tag, y FROM lines": r"line\.py: feed failed: ValueError: could not convert string to float",
        'SELECT a / 0 AS a, "名/b", tag, y FROM lines': "the loss of these rows is (nan|inf)",
    }.items():
        with pytest.raises(BadStatement, match=said):
            elasticdl.sql(f"{select} TO EXPLAIN line")
    (folder / "zoo" / "line.py").unlink()
    with pytest.raises(BadStatement, match=r"line\.py: No such file"):
        elasticdl.sql("SELECT * FROM lines TO EXPLAIN line")


def test_columns_by_importance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[pa.Table] = []

    def permutation(directory: Path, plan: Plan, rows: pa.Table, **asked_for: Any) -> list[Importance]:
        asked.append(rows)
        return [Importance("age", 0.25, 0.5), Importance("工资", 0.0, 0.0)]

    monkeypatch.setattr(importance, "permutation", permutation)
    text = "SELECT * FROM people TO EXPLAIN rich WITH summary.plot='bars.svg', explain.rows=100 USING permutation INTO worth"
    answer = elasticdl.sql(text)
    assert answer.notes == (
        "explained by a sample of 100 of 300 rows: each of 2 columns is shuffled 5 times",
    )
    expected = {"feature": ["age", "工资"], "importance": [0.25, 0.0], "stddev": [0.5, 0.0]}
    assert answer.table is not None
    assert answer.table.to_pydict() == pq.read_table("worth.parquet").to_pydict() == expected
    ages = asked[0].column("age").to_pylist()
    assert len(ages) == 100
    assert ages == sorted(set(ages)), "a sample of the rows, in their order"
    assert asked[0].column_names == ["age", "工资", "rich"]
    drawn = (folder / "bars.svg").read_text(encoding="utf-8")
    assert ">工资</text>" in drawn
    elasticdl.sql(text.replace("INTO worth", "INTO again"))
    assert (folder / "bars.svg").read_text(encoding="utf-8") == drawn, "the same sample, the same picture"


def test_what_each_column_adds_to_each_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"age": [0.5, -0.5], "工资": [0.0, 0.25]})
    monkeypatch.setattr(importance, "integrated_gradients", lambda directory, plan, rows, progress: table)
    answer = elasticdl.sql(
        "SELECT age, \"工资\" FROM people TO EXPLAIN rich WITH explain.plot='bars.png' USING integrated_gradients"
    )
    assert answer.table == table
    assert answer.notes == ("explained by 300 rows",)
    assert (folder / "bars.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (
            "rich USING TreeExplainer",
            "there is no method 'TreeExplainer'; there are permutation and integrated_gradients; trees are not here",
        ),
        (
            "rich USING permutaton",
            "there is no method 'permutaton'; there are permutation and integrated_gradients; did you mean permutation?",
        ),
        (
            "foreign USING integrated_gradients",
            "foreign is of a model zoo, whose feed may make anything of a column, so gradients of columns are not known",
        ),
        ("ritch", "there is no model ritch in .*; did you mean rich?"),
        (
            "rich INTO people",
            r"the table people of .* exists, and results go to a new table; name another one, delete .*people\.parquet, or",
        ),
        (
            "rich WITH explain.plot='a.gif'",
            "explain.plot is the name of a file that ends with .svg or .png; received 'a.gif'",
        ),
    ],
)
def test_what_cannot_be_explained(folder: Path, tail: str, message: str) -> None:
    with pytest.raises(BadStatement, match="sql:1: " + message.replace("?", r"\?")):
        elasticdl.sql(f"SELECT * FROM people TO EXPLAIN {tail}")


def test_columns_with_odd_names_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Quotes, dots, slashes and Chinese characters, in a table, its label and its columns."""
    from elasticdl.keras import runtime

    runtime.import_keras()
    from tests.tabular.feeding import loaded
    from tests.tabular.tables import planned, snapshot

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICDL_STORE", str(tmp_path / "store"))
    random = np.random.default_rng(1)
    names, label = ['it\'s "so"', "a.b.c", "名/字\\x", "`tick` ;"], '结/果."y"'
    table = pa.table(
        {
            names[0]: random.normal(size=40),
            names[1]: random.integers(0, 6, 40),
            names[2]: random.choice(["甲", "乙"], 40).tolist(),
            names[3]: random.random(40) < 0.5,
            label: random.choice(["是的", "no'"], 40).tolist(),
        }
    )
    pq.write_table(table, "怪 表.parquet")
    plan = planned(snapshot(tmp_path / "rows", table), table, label)
    with Store(tmp_path / "store").begin("odd") as entry:
        model = loaded(entry.directory, plan)
        model.serving_model(model.custom_model()).save(entry.directory / "model.keras")
        kinds = dict(zip(names, ["number", "integer", "text", "boolean"], strict=True))
        entry.commit({"label": label, "columns": kinds, "model_zoo": None})
    select = 'SELECT * FROM "怪 表" TO EXPLAIN odd'
    script = (
        f"{select} WITH explain.plot='worth.svg' INTO worth; {select} USING integrated_gradients INTO parts"
    )
    assert command(["sql", script]) == 0
    worth, parts = (pq.read_table(f"{name}.parquet") for name in ("worth", "parts"))
    assert sorted(worth["feature"].to_pylist()) == sorted(parts.column_names) == sorted(names)
    assert parts.num_rows == 40
    drawn = (tmp_path / "worth.svg").read_text(encoding="utf-8")
    assert ">名/字\\x</text>" in drawn
    said = capfd.readouterr().err
    assert "  explained by 40 rows: each of 4 columns is shuffled 5 times\n" in said
    assert "  explained by 40 rows\n" in said
