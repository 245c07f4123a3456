"""What TO EXPLAIN asks for, shows, draws and writes; how importances are computed is tested in tests/tabular."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticdl
from elasticdl.errors import BadStatement
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
        entry.commit({"label": "rich", "columns": {"age": "integer", "工资": "number"}, "model_zoo": None})
    with Store(tmp_path / "store").begin("foreign") as entry:
        entry.commit({"label": None, "columns": {}, "model_zoo": "zoo"})
    return tmp_path


def test_columns_by_importance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[pa.Table] = []

    def permutation(directory: Path, plan: Plan, rows: pa.Table, *, seed: int) -> list[Importance]:
        asked.append(rows)
        return [Importance("age", 0.25, 0.5), Importance("工资", 0.0, 0.0)]

    monkeypatch.setattr(importance, "permutation", permutation)
    text = "SELECT * FROM people TO EXPLAIN rich WITH summary.plot='bars.svg', explain.rows=100 USING permutation INTO worth"
    answer = elasticdl.sql(text)
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
    monkeypatch.setattr(importance, "integrated_gradients", lambda directory, plan, rows: table)
    answer = elasticdl.sql(
        "SELECT age, \"工资\" FROM people TO EXPLAIN rich WITH explain.plot='bars.png' USING integrated_gradients"
    )
    assert answer.table == table
    assert (folder / "bars.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (
            "rich USING TreeExplainer",
            "there is no method 'TreeExplainer'; trees are not here; there are permutation and integrated_gradients",
        ),
        (
            "rich USING permutaton",
            "there is no method 'permutaton'; did you mean permutation?; there are permutation and integrated_gradients",
        ),
        (
            "foreign",
            "foreign is of a model zoo, whose feed may make anything of a column",
        ),
        ("ritch", "there is no model ritch in .*; did you mean rich?"),
        ("rich INTO people", "the table people of .* exists, and results go to a new table"),
        (
            "rich WITH explain.plot='a.gif'",
            "explain.plot is the name of a file that ends with .svg or .png; received 'a.gif'",
        ),
    ],
)
def test_what_cannot_be_explained(folder: Path, tail: str, message: str) -> None:
    with pytest.raises(BadStatement, match="sql:1: " + message.replace("?", r"\?")):
        elasticdl.sql(f"SELECT * FROM people TO EXPLAIN {tail}")
