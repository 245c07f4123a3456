"""Where statements end and where our part begins, whatever stands in strings, comments, quoted names and brackets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.query import tokens
from elasticdl.query.script import Script
from elasticdl.query.tokens import Kind

DIALECTS = ("duckdb", "sqlite", "postgres", "mysql", "hive", "snowflake", "bigquery", "trino")
_NAME_QUOTES = {"mysql": "`", "hive": "`", "bigquery": "`"}
_TAILS = (
    "TO TRAIN dnn LABEL y INTO m",
    "LABEL y INTO m",
    "to predict out.y USING m",
    "TO EXPLAIN m",
    "训练 TO TRAIN dnn LABEL 年龄 INTO m",
)
_WORDS = st.sampled_from(
    [*_TAILS, ";", "; DROP MODEL m;", "年龄", "收入；", "(", "]", "--", "/*", "#", "it", "%"]
)


@st.composite
def _hidden(draw: st.DrawFn, dialect: str) -> str:
    """A piece of a SELECT in which a tail is hidden."""
    text = " ".join(draw(st.lists(_WORDS, min_size=1, max_size=4)))
    quote = _NAME_QUOTES.get(dialect, '"')
    match draw(st.sampled_from(["string", "name", "line", "comment", "brackets"])):
        case "string":
            return f"'{text}'"
        case "name":
            return f"{quote}{text}{quote}"
        case "line":
            return f"a -- {text}\n"
        case "comment":
            return f"a /* {text.replace('/*', '')} */"
    return f"({draw(st.sampled_from(['', '('])).replace('(', '')}SELECT x FROM t {draw(st.sampled_from(_TAILS[:2]))})"


@st.composite
def _script(draw: st.DrawFn, dialect: str) -> tuple[str, list[int | None]]:
    """A script, and where the tail of each statement begins."""
    text, tails = "", []
    for _ in range(draw(st.integers(1, 3))):
        text += "SELECT " + ", ".join(draw(st.lists(_hidden(dialect), min_size=1, max_size=4)))
        text += draw(st.sampled_from([" FROM t", " FROM 员工 AS e", "\nFROM t WHERE a = 'TO TRAIN'"]))
        tail = draw(st.sampled_from([*_TAILS[:4], None]))
        text += draw(st.sampled_from([" ", "\n", " /* ; */ "]))
        tails.append(None if tail is None else len(text))
        text += f"{tail or ''};\n"
    return text, tails


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tails_are_found_where_they_are_and_nowhere_else(dialect: str) -> None:
    @settings(max_examples=60, deadline=None, database=None)
    @given(_script(dialect))
    def holds(script: tuple[str, list[int | None]]) -> None:
        text, tails = script
        assert [piece.tail for piece in tokens.pieces(Script(text), dialect)] == tails

    holds()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM label",
        "SELECT label FROM t",
        "SELECT t.label FROM t JOIN label ON true",
        "SELECT a AS label FROM t",
        "SELECT label, into_ FROM t LIMIT 3",
        "UPDATE t SET a = 'x' WHERE b = 1",
        "WITH to_train AS (SELECT 1 AS a) SELECT a FROM to_train",
    ],
)
def test_these_have_no_tail(dialect: str, text: str) -> None:
    (piece,) = tokens.pieces(Script(text), dialect)
    assert piece.tail is None


def test_a_semicolon_in_a_string_after_call_ends_nothing() -> None:
    found = list(tokens.pieces(Script("CALL refresh('a;b'); SELECT 1 TO TRAIN dnn LABEL y INTO m"), "mysql"))
    assert [piece.tail for piece in found] == [None, 30]


def test_what_postgresql_quotes_with_dollars_is_a_string() -> None:
    (piece,) = tokens.pieces(Script("SELECT $$ TO TRAIN x; $$ AS a"), "postgres")
    assert piece.tail is None


def test_our_part_is_taken_apart_the_same_for_all() -> None:
    text = "WITH a.b=[10, -1.5e3], c='it''s' -- x\n COLUMN \"x y\", `年龄` # y\n INTO m-1@2"
    found = [(token.kind, token.text) for token in tokens.neutral(Script(text), 0, len(text))]
    name, sign, number = Kind.NAME, Kind.SIGN, Kind.NUMBER
    assert found == [
        (name, "WITH"), (name, "a"), (sign, "."), (name, "b"), (sign, "="), (sign, "["), (number, "10"), (sign, ","), (sign, "-"),
        (number, "1.5e3"), (sign, "]"), (sign, ","), (name, "c"), (sign, "="), (Kind.STRING, "it's"), (name, "COLUMN"),
        (Kind.QUOTED, "x y"), (sign, ","), (Kind.QUOTED, "年龄"), (name, "INTO"), (name, "m"), (sign, "-"), (number, "1"), (sign, "@"),
        (number, "2"),
    ]  # fmt: skip
