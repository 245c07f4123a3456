"""Labels that a model does not know: metrics leave such rows out, so they are counted and told, or refused where a result would mislead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.cli import run as command
from elasticdl.query import grammar, halves
from elasticdl.query.classes import Unknown, unknown
from elasticdl.query.jobs import Half
from elasticdl.query.registry import Rooms, Store
from elasticdl.query.session import Session
from elasticdl.query.source import open_source
from elasticdl.query.statements import Evaluate
from elasticdl.tabular import template
from elasticdl.tabular.features import Input, Label, LabelKind, Network, Plan

ROWS = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, and a model of it that was never trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICDL_STORE", str(tmp_path / "store"))
    people = {"age": [*range(ROWS)], "income": ["high", "low"] * (ROWS // 2)}
    pq.write_table(pa.table(people), "people.parquet")
    label = Label("income", LabelKind.TEXT, ("high", "low"))
    plan = Plan((Input("age", "age", False),), (), (), label, Network("dnn"), {}, True, ())
    with Store(tmp_path / "store").begin("income") as entry:
        template.write(entry.directory, plan)
        entry.commit(
            {
                "label": "income",
                "label_kind": "text",
                "columns": {"age": "integer"},
                "model_zoo": None,
                "model_def": template.MODEL_DEF,
                "model_params": {},
                "file": "model.keras",
                "minibatch_size": 16,
            }
        )
    return tmp_path


INTEGERS = Label("a.\"b'", LabelKind.INTEGER, (1, 2))


@pytest.mark.parametrize(
    ("label", "values", "found"),
    [
        (Label("y", LabelKind.TEXT, ("a", "b")), ["a", "b", "a"], Unknown(0, 3, "")),
        (
            Label("y", LabelKind.TEXT, ("a",)),
            ["x", "a", "yy", "yy", "", "z"],
            Unknown(5, 6, "'yy', '', 'x', …"),
        ),
        (Label("y", LabelKind.TEXT, ("a",)), ["k" * 50], Unknown(1, 1, f"'{'k' * 39}…'")),
        (INTEGERS, pa.array([1, 2, 3, 3], pa.uint64()), Unknown(2, 4, "3")),
        (INTEGERS, [1.0, 2.0, 1.5, float("nan")], Unknown(2, 4, "1.5, nan")),
        (Label("y", LabelKind.BOOLEAN, (0, 1)), [True, False], Unknown(0, 2, "")),
        (Label("y", LabelKind.BOOLEAN, (0, 1)), [0, 1, 7], Unknown(1, 3, "7")),
        (Label("y", LabelKind.NUMBER, (1.0, 2.0)), [1, 2, 4], Unknown(1, 3, "4")),
        (Label("y", LabelKind.NUMBER), [1.0, 2.0], Unknown(0, 2, "")),
    ],
)
def test_rows_of_which_the_label_is_no_class(
    tmp_path: Path, label: Label, values: Any, found: Unknown
) -> None:
    pq.write_table(pa.table({label.column: values}), tmp_path / "rows.parquet")
    assert unknown(tmp_path, len(values), label) == found


def test_an_evaluation_of_classes_that_the_model_does_not_know(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    others = (
        "SELECT age, CASE WHEN age < 7 THEN 'x' WHEN age < 9 THEN 'y' ELSE income END AS income FROM people"
    )
    assert command(["sql", f"{others} TO EVALUATE income"]) == 2
    assert capfd.readouterr().err == (
        "error: TEXT:1: 9 of 300 rows have a value of income that income does not know: 'x', 'y'; it knows 'high', 'low'; leave those rows "
        f"out in the SELECT, or train a model that has seen such rows\n  {others} TO EVALUATE income\n  {'^' * len(others)}\n"
    )
    assert command(["sql", "SELECT age, 'medium' AS income FROM people TO EVALUATE income LABEL income"]) == 2
    message, _, carets = capfd.readouterr().err.strip().split("\n")
    assert "300 of 300 rows have a value of income that income does not know: 'medium'; it knows" in message
    assert carets.strip() == "^^^^^^", "of the label"
    assert not list((folder / "store/.work").iterdir())


def test_an_evaluation_with_a_label_of_another_type(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["sql", "SELECT age, 5 AS income FROM people TO EVALUATE income"]) == 2
    assert capfd.readouterr().err.startswith(
        "error: TEXT:1: the column 'income' is int32 here, and was text when income was trained; write "
        'CAST("income" AS VARCHAR) AS "income"\n'
    )


def test_an_evaluation_of_classes_that_the_model_knows(folder: Path) -> None:
    (statement,) = grammar.parse("SELECT * FROM people WHERE income = 'low' TO EVALUATE income", "duckdb")
    assert isinstance(statement, Evaluate)
    source = open_source(folder=folder)
    session = Session(source, Store(folder / "store"))
    with Rooms(session.store) as rooms:
        assert isinstance(halves.begin(statement, session, rooms), Half)
    source.close()


KEY = "SELECT age, 'k' || age AS k FROM people"
TRAINED = "SELECT age, income FROM people"
ALONE = "SELECT age, if(hash(age, 0) = (SELECT min(hash(i, 0)) FROM range(300) AS r(i)), 'rare', income) AS income FROM people"
"""The row that is set apart, which its hash says, is another one than all others."""
MISLEADING = {
    "a key": (
        f"{KEY} LABEL k INTO m",
        "TEXT:1: the label 'k' is different in nearly each row: 270 rows to train on have 270 values, and no validation row (30 in all) "
        "has one of these, but 'k",
    ),
    "rows of other classes": (
        f"{TRAINED} TO TRAIN dnn WITH validation.select='SELECT age, ''medium'' AS income FROM people' LABEL income INTO m",
        "TEXT:1: validation.select: no row (300 in all) has a value of income that the rows to train on have, but 'medium'; those have "
        "'high', 'low'\n",
    ),
    "a row of another class, alone": (
        f"{ALONE} TO TRAIN dnn WITH validation.fraction=0.003 LABEL income INTO m",
        "TEXT:1: no validation row (1 in all) has a value of the label 'income' that the 299 rows to train on have, but 'rare'; set more "
        "rows apart with validation.fraction, or choose them with validation.select\n",
    ),
    "rows of another type": (
        f"{TRAINED} TO TRAIN dnn WITH validation.select='SELECT age, 5 AS income FROM people' LABEL income INTO m",
        "TEXT:1: validation.select: the column 'income' is int32 here, and string in the rows that are trained on; CAST it there\n",
    ),
}


@pytest.mark.parametrize("failure", MISLEADING)
def test_a_training_without_a_row_to_validate_on(
    folder: Path, capfd: pytest.CaptureFixture[str], failure: str
) -> None:
    text, message = MISLEADING[failure]
    assert command(["sql", text]) == 2
    assert f"error: {message}" in capfd.readouterr().err
    assert not (folder / "store/m").exists()


def test_a_training_with_some_rows_that_are_left_out_of_metrics(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attributes = "validation.select='SELECT age, if(age < 3, ''medium'', income) AS income FROM people'"
    text = f"{TRAINED} TO TRAIN dnn WITH {attributes} LABEL income INTO m"
    assert command(["sql", text, "--dry_run"]) == 0
    assert (
        "  3 of 300 validation rows have a value of income that no row to train on has: 'medium'; metrics leave them out, and the loss "
        "counts each of them as 0\n"
    ) in capfd.readouterr().err
    assert command(["sql", f"{TRAINED} LABEL income INTO m", "--dry_run"]) == 0
    assert "validation rows have" not in capfd.readouterr().err
