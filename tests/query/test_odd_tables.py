"""A statement of many kilobytes, a thousand columns, names that need quotes everywhere: how they are read, and how mistakes are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.cli import run as command
from elasticdl.errors import BadStatement
from elasticdl.query.run import run
from elasticdl.spec.databases import quoted

ROWS, COLUMNS = 300, 1000
ODD = ("年龄", 'a"b', "a.b", "a/b", "it's", "a b", "é", "TO TRAIN dnn LABEL y INTO m", "; -- /*", "select")
NAMES = [f"{ODD[place % len(ODD)]} {place}" for place in range(COLUMNS)]
LABEL = "标签.\"是\"/'否'"


def select() -> str:
    columns = ", ".join(f"(i + {place}) % 997 AS {quoted(name)}" for place, name in enumerate(NAMES))
    return f"SELECT {columns}, i % 2 AS {quoted(LABEL)} FROM range({ROWS}) AS r(i)"


def test_a_thousand_columns_with_odd_names_in_one_long_line(tmp_path: Path) -> None:
    text = f"{select()} TO TRAIN dnn LABEL {quoted(LABEL)} INTO wide"
    assert len(text.encode()) > 30_000
    said: list[str] = []
    answer = run(text, flags={}, tell=said.append, store=tmp_path / "store", dry_run=True)
    assert answer.statement == text, "it is kept as it was written"
    assert answer.table.to_pylist()[0]["rows"] == ROWS * 9 // 10
    became = dict(zip([*NAMES, LABEL], answer.notes, strict=True))
    for name in NAMES:
        assert became[name] == f"{name}: standardised + 2 buckets (integers of many values)"
    assert became[LABEL] == f"{LABEL}: 2 classes (integer of the values 0, 1)"
    assert [line.strip() for line in said] == [*answer.notes]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_mistake_far_in_a_long_line_is_shown_with_what_is_around_it() -> None:
    asked = f"{select()} TO TRAIN dnn LABEL "
    with pytest.raises(BadStatement) as caught:
        run(f"{asked}标签 INTO wide", flags={}, tell=lambda line: None, dry_run=True)
    message, line, carets = str(caught.value).split("\n")
    assert message.startswith("sql:1: the SELECT gives no column '标签'; it gives 年龄 0, a\"b 1, ")
    assert len(message) < 1000
    assert line == f"  {asked[len(asked) - 80 :]}标签 INTO wide"
    wide = sum(character > "\u2e80" for character in asked[-80:])
    assert carets == "  " + " " * (80 + wide) + "^^^^"


@pytest.mark.parametrize(
    ("nothing", "says"),
    [
        ("NULL", f"no row has a value of the label {LABEL}: the column is null in all 9 rows"),
        ("NULL::VARCHAR", f"no row has a value of the label {LABEL}: the column is null in all 9 rows"),
        (
            "''",
            f"9 of 9 rows have no {LABEL}; add WHERE {quoted(LABEL)} IS NOT NULL AND {quoted(LABEL)} <> ''",
        ),
    ],
)
def test_a_label_without_any_value(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], nothing: str, says: str
) -> None:
    asked = f"SELECT i, {nothing} AS {quoted(LABEL)} FROM range(9) AS r(i) LABEL "
    assert command(["sql", f"{asked}{quoted(LABEL)} INTO m", f"--store={tmp_path}/store"]) == 2
    assert f"error: TEXT:1: {says}\n" in capfd.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
