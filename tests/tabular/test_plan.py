"""The plan of a table: what each column becomes, with its reason, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.errors import BadInput, BadModel, BadSetting
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.tabular import template
from elasticdl.tabular.columns import Call, Column, ColumnList, Function, Name, Star
from elasticdl.tabular.features import IdSource, LabelKind, Plan, Transform
from elasticdl.tabular.plan import derive
from elasticdl.tabular.statistics import finished, of_table

ROWS = 300
F = Function


def table(**columns: Any) -> pa.Table:
    """Return a table of ROWS rows with a label of two classes and a number."""
    return pa.table({"x": np.linspace(-1, 1, ROWS), **columns, "y": ["no", "yes"] * (ROWS // 2)})


def plan_of(
    given: pa.Table, label: str = "y", types: dict[str, pa.DataType] | None = None, **asked: Any
) -> Plan:
    schema = pa.schema([pa.field(one.name, (types or {}).get(one.name, one.type)) for one in given.schema])
    return derive(schema, finished(of_table(given)), label, **asked)


def became(plan: Plan, column: str) -> str:
    return next(one.becomes for one in plan.reasons if one.column == column)


def column_list(*items: Column, to: str | None = None) -> tuple[ColumnList, ...]:
    return (ColumnList(items, to),)


def words(many: int) -> list[str]:
    return [
        " ".join(["the", "red", "car", f"w{row % 50}"][:many]) + ("" if many > 2 else f" {row % 7}")
        for row in range(ROWS)
    ]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([True, False] * (ROWS // 2), None, "0 or 1"),
        ([row % 32 for row in range(ROWS)], None, "category"),
        ([row % 33 for row in range(ROWS)], None, "standardised + 3 buckets"),
        ([float(row % 2) for row in range(ROWS)], None, "standardised + 2 buckets"),
        ([float(row**4) for row in range(ROWS)], None, "standardised + 3 buckets"),
        ([0.0] * (ROWS - 1) + [1e6], None, "standardised + logarithm"),
        ([None if row % 3 else float(row) for row in range(ROWS)], None, "standardised + 3 buckets + flag"),
        ([f"k{row}" for row in range(ROWS)], None, "left out"),
        (["a"] * ROWS, None, "left out"),
        ([7] * ROWS, None, "left out"),
        ([None] * ROWS, None, "left out"),
        (["ab"[row % 2] for row in range(ROWS)], None, "category"),
        (words(4), None, "mean of embeddings of words"),
        (words(1), None, "category"),
        (
            ["这是一个关于汽车和城市的故事"[row % 2 :] for row in range(ROWS)],
            None,
            "mean of embeddings of characters",
        ),
        (
            [1e9 + row for row in range(ROWS)],
            pa.timestamp("us"),
            "standardised + hour + weekday + time of the year",
        ),
        (
            [1e9 + row * 86400.0 for row in range(ROWS)],
            pa.date32(),
            "standardised + weekday + time of the year",
        ),
        ([[1.0, float(row)] for row in range(ROWS)], None, "vector"),
        ([[row % 5] * (row % 3) for row in range(ROWS)], None, "mean of embeddings"),
        ([["a", "b"][: row % 3] for row in range(ROWS)], None, "mean of embeddings"),
        ([[]] * ROWS, pa.list_(pa.int64()), "left out"),
    ],
)
def test_what_a_column_becomes(values: list[Any], kind: pa.DataType | None, expected: str) -> None:
    array = pa.array(values, kind) if kind is not None and pa.types.is_list(kind) else pa.array(values)
    plan = plan_of(table(c=array), types={} if kind is None else {"c": kind})
    assert became(plan, "c") == expected
    assert Plan.from_json(plan.to_json()) == plan


BEYOND = 1 << 53


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("apart", [0, 1, 1000])
def test_integers_that_are_one_float_are_no_category_and_no_constant(sign: int, apart: int) -> None:
    """Numbers of a snowflake, or nanoseconds, were merged with their neighbours, and shops of eight numbers had "the same value"."""
    given = table(c=[sign * (BEYOND + apart + row % 8) for row in range(ROWS)])
    (reason,) = (one for one in plan_of(given).reasons if one.column == "c")
    assert reason.becomes == "left out"
    assert "integers beyond 2⁵³" in reason.why
    assert 'CAST("c" AS VARCHAR)' in reason.why
    with pytest.raises(BadInput, match=r"the label 'c' has integers beyond 2⁵³.*AS DOUBLE"):
        plan_of(given, "c")
    for asked in (Call(F.CATEGORIZE, (Name("c"),)), Call(F.EMBEDDING, (Name("c"),), (4,))):
        with pytest.raises(BadSetting, match=r"c has integers beyond 2⁵³.*HASH_BUCKET"):
            plan_of(given, columns=column_list(asked, Name("x")))
    hashed = plan_of(given, columns=column_list(Call(F.HASH_BUCKET, (Name("c"),), (50,)), Name("x"))).ids
    assert [(one.source, one.size) for one in hashed if one.name == "c"] == [(IdSource.HASH, 50)]
    listed = plan_of(table(c=[[sign * (BEYOND + row % 8)] * (row % 3) for row in range(ROWS)])).ids
    assert [one.source for one in listed if one.name == "c"] == [IdSource.HASH]


def test_integers_below_are_told_apart() -> None:
    given = table(c=[BEYOND - 8 + row % 8 for row in range(ROWS)])
    assert became(plan_of(given), "c") == "category"
    assert plan_of(given, "c").label.classes == tuple(range(BEYOND - 8, BEYOND))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (199, ""),
        (200, " + 2 buckets"),
        (3199, " + 31 buckets"),
        (3200, " + 32 buckets"),
        (9000, " + 32 buckets"),
    ],
)
def test_numbers_of_few_rows_have_fewer_buckets_or_none(rows: int, expected: str) -> None:
    given = pa.table({"x": np.linspace(-1, 1, rows), "y": np.arange(rows) % 2})
    assert became(plan_of(given), "x") == f"standardised{expected}"


def test_more_values_than_a_vocabulary_has_are_hashed() -> None:
    # a third of the rows is a new value, so it is no key
    values = [f"value {row // 3}" for row in range(330_000)]
    given = pa.table({"c": values, "y": np.arange(len(values)) % 2})
    plan = plan_of(given)
    (ids,) = plan.ids
    assert (ids.source, ids.size, ids.width) == (IdSource.HASH, 1 << 17, 32)
    assert plan.settings == {"minibatch_size": 256, "num_epochs": 3}


def test_large_tables_are_on_servers() -> None:
    given = table(c=["ab"[row % 2] for row in range(ROWS)])
    asked = column_list(Call(F.EMBEDDING, (Call(F.HASH_BUCKET, (Name("c"),), (1 << 20,)),), (16,)))
    plan = plan_of(given, columns=asked)
    assert plan.settings == {"minibatch_size": 8, "num_epochs": 3, "num_ps_pods": 2}


@pytest.mark.parametrize(
    ("values", "target", "kind", "classes"),
    [
        (["b", "a", "c"], None, LabelKind.TEXT, ("a", "b", "c")),
        ([True, False, True], None, LabelKind.BOOLEAN, (0, 1)),
        ([3, 1, 2], None, LabelKind.INTEGER, (1, 2, 3)),
        ([0.5, 1.5, 2.5], None, LabelKind.NUMBER, ()),
        ([1.0, 2.0, 4.0], "dnn_classifier", LabelKind.NUMBER, (1.0, 2.0, 4.0)),
        ([3, 1, 2], "LinearRegressor", LabelKind.NUMBER, ()),
    ],
)
def test_labels(values: list[Any], target: str | None, kind: LabelKind, classes: tuple[Any, ...]) -> None:
    label = plan_of(table(label=values * (ROWS // 3)), "label", target=target).label
    assert (label.kind, label.classes) == (kind, classes)


def test_settings_follow_from_rows_and_attributes() -> None:
    assert plan_of(table()).settings == {"minibatch_size": 8, "num_epochs": 79}
    assert plan_of(table()).validates
    assert plan_of(table(), rows=100_000).settings == {"minibatch_size": 256, "num_epochs": 8}
    asked = {
        "train.epoch": 5,
        "train.batch_size": 32,
        "model.hidden_units": (10, 10),
        "optimizer.learning_rate": 0.1,
    }
    plan = plan_of(table(), rows=150, attributes=asked, target="DNNClassifier")
    assert plan.settings == {"minibatch_size": 32, "num_epochs": 5}
    assert not plan.validates
    assert plan.network.hidden_units == (10, 10)
    assert plan.network.optimizer_arguments == {"learning_rate": 0.1}


def test_functions_of_columns() -> None:
    given = table(
        n=np.arange(ROWS) % 100 + 1.0,
        c=["abc"[row % 3] for row in range(ROWS)],
        d=["xy"[row % 2] for row in range(ROWS)],
        s=[f"{row % 4}, {row % 7}" for row in range(ROWS)],
        v=["0.5; 1.5"] * ROWS,
    )
    n, c, d = Name("n"), Name("c"), Name("d")
    plan = plan_of(
        given,
        columns=column_list(
            Call(F.NORMALIZE, (n,)),
            Call(F.LOG, (n,)),
            Call(F.STANDARDIZE, (Call(F.LOG, (n,)),)),
            Call(F.EMBEDDING, (Call(F.BUCKET, (n,), ((10, 20),)),), (4, "sum")),
            Call(F.INDICATOR, (Call(F.CATEGORIZE, (c,), (2,)),)),
            Call(F.EMBEDDING, (Call(F.HASH_BUCKET, (c,), (50,)),), (3,)),
            Call(F.CROSS, (c, d, Call(F.BUCKET, (n,), (4,))), (1000,)),
            Call(F.SPARSE, (Name("s"),), (7,)),
            Call(F.DENSE, (Name("v"),), (2, ";")),
            Name("x"),
        ),
    )
    numbers = [(one.column, one.transform, one.shift, one.scale) for one in plan.numbers if one.column == "n"]
    assert numbers[:2] == [("n", Transform.NONE, 1.0, 99.0), ("n", Transform.LOG, 0.0, 1.0)]
    assert numbers[2][1:3] == (Transform.LOG, pytest.approx(np.log1p(given["n"].to_numpy()).mean()))
    ids = {one.name: one for one in plan.ids}
    assert (ids["n in buckets"].values, ids["n in buckets"].width, ids["n in buckets"].combiner) == (
        (10.0, 20.0),
        4,
        "sum",
    )
    category, hashed = (one for one in plan.ids if one.name == "c")
    assert (category.values, category.size, category.is_indicator) == (("a", "b"), 4, True)
    assert (hashed.source, hashed.size, hashed.width) == (IdSource.HASH, 50, 3)
    cross = ids["c x d x n in buckets"]
    assert (cross.columns, cross.size, len(cross.crossed)) == (("c", "d", "n"), 1000, 3)
    assert (ids["s"].source, ids["s"].size, ids["s"].is_indicator) == (IdSource.NUMBERS, 8, True)
    assert {one.column: one.separator for one in plan.inputs if one.separator} == {"s": ",", "v": ";"}
    assert became(plan, "x") == "standardised + 3 buckets"
    assert Plan.from_json(plan.to_json()) == plan


def test_lists_for_parts_of_a_model() -> None:
    given = table(c=["abc"[row % 3] for row in range(ROWS)], d=["xy"[row % 2] for row in range(ROWS)])
    asked = (
        ColumnList((Call(F.CROSS, (Name("c"), Name("d")), (100,)),), "linear_feature_columns"),
        ColumnList((Name("x"),), "deep"),
    )
    plan = plan_of(given, columns=asked, target="wide_deep")
    assert {one.part for one in plan.ids} == {"wide", "deep"}
    assert {one.column for one in plan.inputs} == {"c", "d", "x"}
    every = plan_of(
        given, columns=(ColumnList((Star(),), "deep"), ColumnList((Name("c"),), "wide")), target="wide_deep"
    )
    assert {one.column for one in every.inputs} == {"c", "d", "x"}


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        ({}, {"label": "z"}, r"there is no column 'z'.*the label is one of x, y"),
        (
            {"c": [{"a": 1}] * ROWS},
            {},
            r"the column 'c' is struct<a: int64>, .*select its fields: \"c\".field AS name",
        ),
        ({"c": [b"1"] * ROWS}, {}, r"the column 'c' is binary, .*CAST\(\"c\" AS VARCHAR\)"),
        (
            {},
            {"target": "dnn_regressor"},
            "the label 'y' is text, which a regression can't predict; ask for a classifier",
        ),
        ({"y": ["a"] * ROWS}, {}, "the label 'y' is 'a' in all rows; there is nothing to learn"),
        ({"y": [1.5] * ROWS}, {}, "the label 'y' is 1.5 in all rows"),
        ({"y": [None, "a", "b"] * (ROWS // 3)}, {}, r"100 of 300 rows have no y; add WHERE y IS NOT NULL"),
        (
            {"y": [0.5, float("nan"), float("inf")] * (ROWS // 3)},
            {},
            r"the label 'y' is missing, NaN or infinite in 200 of 300 rows to train on; add WHERE abs\(y\) < 1e308",
        ),
        ({"y": [7] * ROWS}, {}, "the label 'y' is 7 in all rows; there is nothing to learn"),
        (
            {"y": pa.array([*range(ROWS)], pa.date32())},
            {},
            r"the label 'y' is date32\[day\]; .*: select a number of it: extract\(epoch FROM \"y\"\) AS name",
        ),
        (
            {"y": [[1]] * ROWS},
            {},
            "the label 'y' is list<.*>; .*: select one of its elements, or one text of all",
        ),
        (
            {"y": [b"1"] * ROWS},
            {},
            r"the label 'y' is binary; .*: select it as numbers or text: CAST\(\"y\" AS VARCHAR\)",
        ),
        ({"x": [1.0] * ROWS}, {}, "no column is left to learn from: x: left out"),
        ({}, {"target": "svm"}, "there is no model 'svm'; there are dnn, linear"),
        ({"a/b": np.arange(ROWS), "a_b": np.arange(ROWS)}, {}, "would both be the input 'a_b'; rename one"),
        (
            {},
            {"attributes": {"model.hidden_units": (0,)}},
            r"model.hidden_units is a list of numbers of 1 or more.*got \[0\]",
        ),
        (
            {},
            {"attributes": {"model.optimizer": "adamm"}},
            "model.optimizer: 'adamm' is unknown; did you mean adam",
        ),
        (
            {},
            {"attributes": {"optimizer.lerning_rate": 1}},
            "optimizer.lerning_rate is unknown; did you mean learning_rate",
        ),
        (
            {},
            {"attributes": {"optimizer.learning_rate": -1}},
            "optimizer.learning_rate is a number above 0; got -1",
        ),
        (
            {},
            {"columns": column_list(Call(F.LOG, (Name("xx"),)))},
            r"COLUMN LOG\(xx\): the SELECT gives no column 'xx'; did you mean x",
        ),
        (
            {},
            {"columns": column_list(Call(F.EMBEDDING, (Name("x"),), (8,)))},
            "x has too many numbers to be a category; use BUCKET",
        ),
        ({}, {"columns": column_list(Call(F.LOG, (Name("y"),)))}, "y is the label"),
        (
            {},
            {"columns": column_list(Call(F.BUCKET, (Name("x"),), ((2, 1),)))},
            "bounds rise from each to the next",
        ),
        (
            {},
            {"columns": column_list(Name("x"), to="left")},
            "FOR left: there is no such input; our models have wide and deep",
        ),
    ],
)
def test_refusals(columns: dict[str, Any], asked: dict[str, Any], message: str) -> None:
    usual = table()
    given = pa.table({**dict(zip(usual.column_names, usual.columns, strict=True)), **columns})
    with pytest.raises(BadInput, match=message):
        plan_of(given, **asked)


def test_a_model_that_stops_by_other_rows_is_not_trained_again_without_any(tmp_path: Path) -> None:
    plan = replace(plan_of(table()), validates=True)
    template.write(tmp_path, plan)
    file, alone = tmp_path / "model.py", JobSpec(model_def=template.MODEL_DEF, training_data="/rows")
    with pytest.raises(
        BadSetting, match=r'--validation_data is missing: .*/model\.py stops .*"validates": false'
    ):
        template.check(alone, file)
    beside = replace(alone, validation_data="/more")
    with pytest.raises(BadSetting, match="--evaluate_at_epoch_end=false is given"):
        template.check(replace(beside, evaluate_at_epoch_end=False), file)
    template.check(beside, file)
    again = {"kind": JobKind.EVALUATE, "trained_model": "model.keras", "evaluate_at_epoch_end": False}
    template.check(replace(beside, training_data="", **again), file)
    file.write_text(template.TEXT.replace("table.callbacks", "list"))
    template.check(alone, file)
    template.write(tmp_path, replace(plan, settings={"num_ps_pods": 2}))
    template.check(alone, file)
    template.write(tmp_path, replace(plan, validates=False))
    template.check(alone, file)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(BadModel, match=r"plan\.json: is no plan of a model"):
        template.check(alone, file)
