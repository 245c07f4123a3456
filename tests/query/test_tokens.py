"""Where statements end and where our part begins, whatever stands in strings, comments, quoted names and brackets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.query import grammar, tokens
from elasticdl.query.script import Script
from elasticdl.query.statements import Predict
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
        if dialect in BODIES and draw(st.booleans()):
            tails.append(None)
            text += f"{draw(_made(dialect))};\n"
    return text, tails


BODIES = {
    "sqlite": ["CREATE TEMP TRIGGER IF NOT EXISTS t AFTER UPDATE OF begin ON u WHEN NEW.end > 1"],
    "mysql": [
        "CREATE DEFINER = 'me'@'%' TRIGGER t BEFORE INSERT ON u FOR EACH ROW",
        "CREATE OR REPLACE PROCEDURE IF NOT EXISTS p(IN a INT, OUT b INT) READS SQL DATA",
        "CREATE FUNCTION f() RETURNS INT DETERMINISTIC",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO",
    ],
    "postgres": ["CREATE FUNCTION f(a int) RETURNS int LANGUAGE SQL"],
}
_PLAIN = {
    "sqlite": ["DELETE FROM t WHERE begin = CASE WHEN a THEN 'END;' ELSE CASE b WHEN 1 THEN 2 END END"],
    "mysql": [
        "SET NEW.a = IF(NEW.b, IF(c, (1), f(2, 3)), REPEAT('x', 3))",
        "DROP TABLE IF EXISTS t",
        "DECLARE c CURSOR FOR SELECT `end`, t.end FROM t WHERE begin = 1 FOR UPDATE",
        "SELECT CASE WHEN a THEN IF(b, 1, 2) ELSE 3 END, end FROM t",
        "RETURN 1",
    ],
    "postgres": ["SELECT CASE WHEN a THEN $$ END; $$ END"],
}
_BLOCKS = [
    "IF a THEN {} ELSEIF b THEN {} ELSE {} END IF",
    "IF (a = 1) THEN {} ELSE IF NOT EXISTS (SELECT 1) THEN {} END IF; END IF",
    "IF EXISTS (SELECT 1) OR IF(a, 1, 2) THEN {} END IF",
    "CASE a WHEN 1 THEN {} ELSE {} END CASE",
    "here: LOOP {} LEAVE here; END LOOP here",
    "WHILE a < 3 DO {} END WHILE",
    "REPEAT {} UNTIL a END REPEAT",
    "FOR i IN 1..3 DO {} END FOR",
    "DECLARE EXIT HANDLER FOR NOT FOUND BEGIN {} END",
    "one: BEGIN {} END one",
    "BEGIN END",
]


@st.composite
def _statement(draw: st.DrawFn, dialect: str, depth: int = 0) -> str:
    """A statement of a body, with its semicolon."""
    if dialect != "mysql" or depth > 2 or draw(st.booleans()):
        return draw(st.sampled_from(_PLAIN[dialect])) + ";"
    block = draw(st.sampled_from(_BLOCKS))
    return block.format(*(draw(_statement(dialect, depth + 1)) for _ in range(block.count("{}")))) + ";"


@st.composite
def _made(draw: st.DrawFn, dialect: str) -> str:
    """A statement that makes something with a body; it has no semicolon of its own."""
    header = draw(st.sampled_from(BODIES[dialect]))
    inner = [draw(_statement(dialect)) for _ in range(draw(st.integers(1, 3)))]
    if dialect == "mysql" and draw(st.booleans()):
        return f"{header} {inner[0].removesuffix(';')}"
    begin = "BEGIN ATOMIC" if dialect == "postgres" else "begin"
    return f"{header} {begin} {' '.join(inner)} end"


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


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sqlite", "BEGIN; DELETE FROM t; END"),
        ("sqlite", "CREATE TABLE trigger_ (a); SELECT 1 AS begin; SELECT 2"),
        ("mysql", "BEGIN; UPDATE t SET a = 1; COMMIT"),
        ("mysql", "CREATE TABLE t (begin INT, end INT); DROP TRIGGER IF EXISTS u; DROP PROCEDURE p"),
        ("duckdb", "BEGIN; CREATE MACRO f(a) AS CASE WHEN a THEN 1 END; COMMIT"),
        ("postgres", "BEGIN; CREATE FUNCTION f() RETURNS int AS $$ BEGIN; END; $$ LANGUAGE plpgsql; COMMIT"),
    ],
)
def test_transactions_and_names_are_no_blocks(dialect: str, text: str) -> None:
    assert len(list(tokens.pieces(Script(text), dialect))) == 3


def test_a_block_of_mariadb_without_a_name() -> None:
    (piece,) = tokens.pieces(Script("BEGIN NOT ATOMIC SELECT 1; SELECT 2; END;"), "mysql")
    assert piece.end == 40


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


@pytest.mark.parametrize(
    ("written", "table", "column"),
    [
        ("y", None, "y"),
        ("t.y", "t", "y"),
        ("a.t.y", "a.t", "y"),
        ('"x.y"', None, "x.y"),
        ('t."x.y"', "t", "x.y"),
        ("a.`t`.`x.y`", "a.t", "x.y"),
    ],
)
def test_a_dot_in_the_quotes_of_a_column_is_its_own(written: str, table: str | None, column: str) -> None:
    text = f"SELECT 1 TO PREDICT {written} USING m"
    (found,) = grammar.parse(text, "duckdb")
    assert isinstance(found, Predict)
    assert (found.table and found.table.name, found.column.name) == (table, column)
    above = f"{found.table.place.text}." if found.table is not None else ""
    assert above + found.column.place.text == written
