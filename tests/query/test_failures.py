"""What can't work is refused with file, line, the piece and what to do; nothing is made. Each failure is literal."""

from __future__ import annotations

import pyarrow as pa
import pytest

from elasticdl.errors import BadInput, BadSetting, BadStatement
from elasticdl.query import attributes, check, grammar
from elasticdl.query.statements import Evaluate, Explain, Predict, Train


def _refused(text: str, dialect: str = "duckdb") -> str:
    with pytest.raises(BadStatement) as caught:
        _read(text, dialect)
    return str(caught.value)


def _read(text: str, dialect: str) -> None:
    for statement in grammar.parse(text, dialect, "my.sql"):
        if isinstance(statement, Train | Predict | Evaluate | Explain):
            attributes.wanted(statement)


def _lines(*lines: str) -> str:
    return "\n".join(lines)


GRAMMAR = {
    "a clause that is spelt wrong": (
        "SELECT 1;\nSELECT * FROM t\nTO TRAIN dnn LABL income INTO m",
        "my.sql:3: expected INTO with the model's name, received 'LABL'; did you mean LABEL?",
        "  TO TRAIN dnn LABL income INTO m",
        "               ^^^^",
    ),
    "WITH behind LABEL": (
        "SELECT * FROM t TO TRAIN dnn LABEL income WITH train.epoch=1 INTO m",
        "my.sql:1: expected INTO with the model's name, received 'WITH'; WITH and COLUMN come before LABEL",
        "  SELECT * FROM t TO TRAIN dnn LABEL income WITH train.epoch=1 INTO m",
        "                                            ^^^^",
    ),
    "an end too early": (
        "SELECT * FROM t TO TRAIN dnn LABEL income INTO",
        "my.sql:1: expected a model's name; the statement ends here",
        "  SELECT * FROM t TO TRAIN dnn LABEL income INTO",
        "                                                ^",
    ),
    "an end too late": (
        "SELECT * FROM t TO PREDICT out.y USING m LIMIT 3",
        "my.sql:1: the statement should end before 'LIMIT'",
        "  SELECT * FROM t TO PREDICT out.y USING m LIMIT 3",
        "                                           ^^^^^",
    ),
    "clauses in another order": (
        "SELECT * FROM t TO PREDICT out.y USING m WITH predict.into=append",
        "my.sql:1: the statement should end before 'WITH'; WITH, COLUMN and LABEL come before INTO and USING",
        "  SELECT * FROM t TO PREDICT out.y USING m WITH predict.into=append",
        "                                           ^^^^",
    ),
    "a string without end": (
        "SELECT 'it's' AS a, b FROM t",
        "my.sql:1: what begins here does not end; close it with '",
        "  SELECT 'it's' AS a, b FROM t",
        "              ^",
    ),
    "a comment without end": (
        "SELECT 1;\n/* later",
        "my.sql:2: what begins here does not end; a comment needs */",
        "  /* later",
        "  ^",
    ),
    "a block without end": (
        "SELECT 1;\nCREATE TRIGGER t BEFORE INSERT ON u FOR EACH ROW IF NEW.a THEN SET NEW.a = 1; END;",
        "my.sql:2: what begins here does not end; IF needs END IF",
        "  CREATE TRIGGER t BEFORE INSERT ON u FOR EACH ROW IF NEW.a THEN SET NEW.a = 1; END;",
        "                                                   ^^",
    ),
    "a command of another program": (
        "DELIMITER //\nCREATE PROCEDURE p() BEGIN SELECT 1; END //",
        "my.sql:1: DELIMITER is a command of the program mysql and no SQL; leave it out: semicolons in the body of a trigger or a "
        "procedure end no statement here",
        "  DELIMITER //",
        "  ^^^^^^^^^",
    ),
    "a full-width semicolon": (
        "SELECT 年龄 FROM 员工；SELECT 2",
        "my.sql:1: this is a full-width semicolon, which ends no statement; write ;",
        "  SELECT 年龄 FROM 员工；SELECT 2",
        "                       ^^",
    ),
    "a full-width quote": (
        "SELECT 年龄 FROM 员工 TO TRAIN dnn WITH optimizer=“adam” LABEL 年龄 INTO m",
        "my.sql:1: '“' has no meaning after the SELECT; write \"",
        "  SELECT 年龄 FROM 员工 TO TRAIN dnn WITH optimizer=“adam” LABEL 年龄 INTO m",
        "                                                    ^",
    ),
    "TO RUN": (
        "SELECT 1 TO RUN image CMD 'a'",
        "my.sql:1: TO RUN is not here: run the program with `elasticdl run`, or in a step of its own beside this one",
        "  SELECT 1 TO RUN image CMD 'a'",
        "              ^^^",
    ),
    "TO MAXIMIZE": (
        "SELECT 1 TO MAXIMIZE SUM(a)",
        "my.sql:1: TO MAXIMIZE is not here: statements train and use models, and solve no optimisation problems",
        "  SELECT 1 TO MAXIMIZE SUM(a)",
        "              ^^^^^^^^",
    ),
    "TRAIN USING": (
        "SELECT 1 TO TRAIN dnn LABEL y USING old INTO new",
        "my.sql:1: TO TRAIN … USING is not here: to start from the weights of another model write WITH "
        "engine.checkpoint_dir_for_init='DIR'",
        "  SELECT 1 TO TRAIN dnn LABEL y USING old INTO new",
        "                                ^^^^^",
    ),
    "WEIGHTED_CATEGORY": (
        "SELECT 1 TO TRAIN dnn COLUMN WEIGHTED_CATEGORY(a) LABEL y INTO m",
        "my.sql:1: WEIGHTED_CATEGORY is not here: a SELECT that splits the weights off gives EMBEDDING(SPARSE(x, n), width, sum) its ids",
        "  SELECT 1 TO TRAIN dnn COLUMN WEIGHTED_CATEGORY(a) LABEL y INTO m",
        "                               ^^^^^^^^^^^^^^^^^",
    ),
    "a function that is spelt wrong": (
        "SELECT 1 TO TRAIN dnn COLUMN BUCKT(a, 3) LABEL y INTO m",
        "my.sql:1: COLUMN has no function BUCKT; did you mean BUCKET?",
        "  SELECT 1 TO TRAIN dnn COLUMN BUCKT(a, 3) LABEL y INTO m",
        "                               ^^^^^",
    ),
    "a function of too little": (
        "SELECT 1 TO TRAIN dnn COLUMN CROSS(a, 3) LABEL y INTO m",
        "my.sql:1: this does not fit CROSS; write CROSS([a, b, ...], n)",
        "  SELECT 1 TO TRAIN dnn COLUMN CROSS(a, 3) LABEL y INTO m",
        "                               ^^^^^",
    ),
    "COLUMN of a prediction": (
        "SELECT 1 TO PREDICT p.y COLUMN a USING m",
        "my.sql:1: COLUMN belongs to TO TRAIN: a model keeps what was made of its columns; leave it out",
        "  SELECT 1 TO PREDICT p.y COLUMN a USING m",
        "                          ^^^^^^",
    ),
    "BigQuery's statement": (
        "CREATE MODEL d.m OPTIONS(model_type='dnn') AS SELECT 1",
        "my.sql:1: CREATE MODEL is BigQuery's; write SELECT … TO TRAIN dnn LABEL column INTO model, and SELECT … TO PREDICT table.column "
        "USING model in place of ML.PREDICT",
        "  CREATE MODEL d.m OPTIONS(model_type='dnn') AS SELECT 1",
        "  ^^^^^^^^^^^^",
    ),
    "the older form": (
        "TRAIN dnn SELECT 1",
        "my.sql:1: a statement begins with its SELECT: write SELECT … TO TRAIN …",
        "  TRAIN dnn SELECT 1",
        "  ^^^^^",
    ),
    "a name that no model may have": (
        "SELECT 1 LABEL y INTO 年龄模型",
        "my.sql:1: a model's name has letters, digits, _, . and - only; '年龄模型' has '型', '年', '模', '龄'",
        "  SELECT 1 LABEL y INTO 年龄模型",
        "                        ^^^^^^^^",
    ),
    "an attribute twice": (
        "SELECT 1 TO TRAIN dnn WITH train.epoch=3, train.epoch=4 LABEL y INTO m",
        "my.sql:1: train.epoch is given twice",
        "  SELECT 1 TO TRAIN dnn WITH train.epoch=3, train.epoch=4 LABEL y INTO m",
        "                                            ^^^^^^^^^^^",
    ),
    "a table without a name": (
        'SELECT 1 TO PREDICT "".y USING m',
        "my.sql:1: expected where predictions go, as in table.column; the name between these quotes is empty",
        '  SELECT 1 TO PREDICT "".y USING m',
        "                      ^^",
    ),
    "a column without a name": (
        "SELECT 1 TO PREDICT p.`` USING m",
        "my.sql:1: expected a name after the dot; the name between these quotes is empty",
        "  SELECT 1 TO PREDICT p.`` USING m",
        "                        ^^",
    ),
    "a value that is code": (
        "SELECT 1 TO TRAIN dnn WITH train.epoch=open() LABEL y INTO m",
        "my.sql:1: expected INTO with the model's name, received '('",
        "  SELECT 1 TO TRAIN dnn WITH train.epoch=open() LABEL y INTO m",
        "                                             ^",
    ),
    "an attribute that is spelt wrong": (
        "SELECT 1 TO TRAIN dnn WITH train.epohc=3 LABEL y INTO m",
        "my.sql:1: train.epohc is unknown; did you mean train.epoch?",
        "  SELECT 1 TO TRAIN dnn WITH train.epohc=3 LABEL y INTO m",
        "                             ^^^^^^^^^^^",
    ),
    "an attribute of the model that is spelt wrong": (
        "SELECT 1 TO TRAIN dnn WITH hiden_units=[3] LABEL y INTO m",
        "my.sql:1: hiden_units is unknown; did you mean model.hidden_units?",
        "  SELECT 1 TO TRAIN dnn WITH hiden_units=[3] LABEL y INTO m",
        "                             ^^^^^^^^^^^",
    ),
    "an attribute of training without its prefix": (
        "SELECT 1 TO TRAIN linear WITH epoch=5 LABEL y INTO m",
        "my.sql:1: epoch is unknown; write train.epoch",
        "  SELECT 1 TO TRAIN linear WITH epoch=5 LABEL y INTO m",
        "                                ^^^^^",
    ),
    "an attribute of the optimizer without its prefix": (
        "SELECT 1 LABEL y INTO m; SELECT 1 TO TRAIN dnn WITH learning_rate=0.1 LABEL y INTO m",
        "my.sql:1: learning_rate is unknown; write optimizer.learning_rate",
        "  SELECT 1 LABEL y INTO m; SELECT 1 TO TRAIN dnn WITH learning_rate=0.1 LABEL y INTO m",
        "                                                      ^^^^^^^^^^^^^",
    ),
    "a setting of the job without its prefix": (
        "SELECT 1 TO TRAIN dnn WITH num_workers=4 LABEL y INTO m",
        "my.sql:1: num_workers is a setting of the job; write engine.num_workers",
        "  SELECT 1 TO TRAIN dnn WITH num_workers=4 LABEL y INTO m",
        "                             ^^^^^^^^^^^",
    ),
    "an attribute of another generation": (
        "SELECT 1 TO TRAIN dnn WITH train.shuffle=1000 LABEL y INTO m",
        "my.sql:1: train.shuffle is not here: rows are shuffled when they are read, and in every epoch again; leave it out",
        "  SELECT 1 TO TRAIN dnn WITH train.shuffle=1000 LABEL y INTO m",
        "                             ^^^^^^^^^^^^^",
    ),
    "a setting under another prefix": (
        "SELECT 1 TO TRAIN dnn WITH train.grads_to_wait=2 LABEL y INTO m",
        "my.sql:1: train.grads_to_wait is a setting of the job; write engine.grads_to_wait",
        "  SELECT 1 TO TRAIN dnn WITH train.grads_to_wait=2 LABEL y INTO m",
        "                             ^^^^^^^^^^^^^^^^^^^",
    ),
    "a setting that is spelt wrong": (
        "SELECT 1 TO TRAIN dnn WITH engine.num_wokers=2 LABEL y INTO m",
        "my.sql:1: engine.num_wokers: a job that is to train has no setting 'num_wokers'; did you mean engine.num_workers?",
        "  SELECT 1 TO TRAIN dnn WITH engine.num_wokers=2 LABEL y INTO m",
        "                             ^^^^^^^^^^^^^^^^^",
    ),
    "a setting of the wrong type": (
        "SELECT 1 TO TRAIN dnn WITH engine.seed='x' LABEL y INTO m",
        "my.sql:1: engine.seed: expected a whole number of at least 0, received 'x'",
        "  SELECT 1 TO TRAIN dnn WITH engine.seed='x' LABEL y INTO m",
        "                             ^^^^^^^^^^^",
    ),
    "a setting that the statement makes": (
        "SELECT 1 TO TRAIN dnn WITH engine.output='m.keras' LABEL y INTO m",
        "my.sql:1: engine.output is not for WITH: INTO names the model, and --store its place",
        "  SELECT 1 TO TRAIN dnn WITH engine.output='m.keras' LABEL y INTO m",
        "                             ^^^^^^^^^^^^^",
    ),
    "a setting of pods": (
        "SELECT 1 TO TRAIN dnn WITH engine.image_name='i' LABEL y INTO m",
        "my.sql:1: engine.image_name is not for WITH: it is for all statements of a script, whose pods are made before it is read; "
        "give it as a flag",
        "  SELECT 1 TO TRAIN dnn WITH engine.image_name='i' LABEL y INTO m",
        "                             ^^^^^^^^^^^^^^^^^",
    ),
    "one setting by two names": (
        "SELECT 1 TO TRAIN dnn WITH train.epoch=2, engine.num_epochs=3 LABEL y INTO m",
        "my.sql:1: engine.num_epochs and train.epoch are the same; give one of them",
        "  SELECT 1 TO TRAIN dnn WITH train.epoch=2, engine.num_epochs=3 LABEL y INTO m",
        "                                            ^^^^^^^^^^^^^^^^^",
    ),
    "a value of the wrong type": (
        "SELECT 1 TO TRAIN dnn WITH validation.fraction=2 LABEL y INTO m",
        "my.sql:1: validation.fraction is a number above 0 and below 1; received 2",
        "  SELECT 1 TO TRAIN dnn WITH validation.fraction=2 LABEL y INTO m",
        "                             ^^^^^^^^^^^^^^^^^^^",
    ),
    "a model's attribute where none is trained": (
        "SELECT 1 TO EVALUATE m WITH model.hidden_units=[3] LABEL y",
        "my.sql:1: model.hidden_units is settled when a model is trained; leave it out",
        "  SELECT 1 TO EVALUATE m WITH model.hidden_units=[3] LABEL y",
        "                              ^^^^^^^^^^^^^^^^^^",
    ),
}


@pytest.mark.parametrize("failure", GRAMMAR)
def test_statements_that_are_refused(failure: str) -> None:
    text, *lines = GRAMMAR[failure]
    dialect = "mysql" if failure in ("a block without end", "a command of another program") else "duckdb"
    assert _refused(text, dialect) == _lines(*lines)


SCHEMA = pa.schema([("age", pa.int64()), ("年龄", pa.float64()), ("income", pa.string())])


def _train(tail: str) -> Train:
    (statement,) = grammar.parse(f"SELECT * FROM t\n{tail}", "duckdb", "my.sql")
    assert isinstance(statement, Train)
    return statement


CHECKED = {
    "a label that is not there": (
        "LABEL incom INTO m",
        "my.sql:2: the SELECT gives no column 'incom'; did you mean income?",
        "  LABEL incom INTO m",
        "        ^^^^^",
    ),
    "a label like no column": (
        "LABEL xyz INTO m",
        "my.sql:2: the SELECT gives no column 'xyz'; it gives age, 年龄, income",
        "  LABEL xyz INTO m",
        "        ^^^",
    ),
    "a label of which the column has other letters": (
        "LABEL AGE INTO m",
        "my.sql:2: the SELECT gives no column 'AGE'; did you mean age?",
        "  LABEL AGE INTO m",
        "        ^^^",
    ),
    "a column that is not there": (
        "TO TRAIN dnn COLUMN EMBEDDING(HASH_BUCKET(aeg, 9), 3) LABEL income INTO m",
        "my.sql:2: the SELECT gives no column 'aeg'; did you mean age?",
        "  TO TRAIN dnn COLUMN EMBEDDING(HASH_BUCKET(aeg, 9), 3) LABEL income INTO m",
        "                                            ^^^",
    ),
    "the label as an input": (
        "TO TRAIN dnn COLUMN age, income LABEL income INTO m",
        "my.sql:2: 'income' is the label; a model can't have it as an input as well",
        "  TO TRAIN dnn COLUMN age, income LABEL income INTO m",
        "                           ^^^^^^",
    ),
}


@pytest.mark.parametrize("failure", CHECKED)
def test_names_that_the_select_does_not_give(failure: str) -> None:
    tail, *lines = CHECKED[failure]
    with pytest.raises(BadStatement) as caught:
        check.train(_train(tail), SCHEMA)
    assert str(caught.value) == _lines(*lines)


@pytest.mark.parametrize("name", ["probabilities", "record", "shard"])
def test_a_label_called_as_another_column_of_predictions(name: str) -> None:
    statement, schema = _train(f"LABEL {name} INTO m"), pa.schema([("a", pa.int64()), (name, pa.int64())])
    with pytest.raises(BadStatement) as caught:
        check.train(statement, schema)
    assert str(caught.value) == _lines(
        f"my.sql:2: a label can't be called '{name}', as predictions have another column of this name; give it another name with AS",
        f"  LABEL {name} INTO m",
        f"        {'^' * len(name)}",
    )
    check.train(statement, schema, own=False)  # outputs of a zoo's model have names of their own


def test_a_column_twice() -> None:
    with pytest.raises(BadStatement) as caught:
        check.train(_train("LABEL a INTO m"), pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    assert str(caught.value) == _lines(
        "my.sql:1: the SELECT gives 2 columns 'a' and 'A'; name each column once, with AS",
        "  SELECT * FROM t",
        "  ^^^^^^^^^^^^^^^",
    )


def _used(found: pa.Schema, needed: dict[str, str], dialect: str = "duckdb") -> str:
    (statement,) = grammar.parse("SELECT * FROM t TO PREDICT p.y USING m", "duckdb", "my.sql")
    assert isinstance(statement, Predict)
    with pytest.raises(BadStatement) as caught:
        check.use(statement, found, needed, None, dialect)
    return str(caught.value).split("\n")[0]


def test_a_column_of_the_training_that_is_missing() -> None:
    needed = {"age": "integer", "agent": "text"}
    assert _used(SCHEMA, needed) == (
        "my.sql:1: the SELECT gives no column 'agent'; did you mean age?; the model m was trained with it"
    )


def test_a_column_of_another_type_than_trained() -> None:
    assert _used(SCHEMA, {"age": "text"}) == (
        'my.sql:1: the column \'age\' is int64 here, and was text when m was trained; write CAST("age" AS VARCHAR) AS "age"'
    )
    assert _used(SCHEMA, {"age": "text"}, "mysql").endswith("write CAST(`age` AS CHAR) AS `age`")
    (statement,) = grammar.parse("SELECT * FROM t TO PREDICT p.y USING m", "duckdb")
    assert isinstance(statement, Predict)
    check.use(statement, SCHEMA, {"age": "number", "年龄": "integer"}, None)  # numbers are numbers


@pytest.mark.parametrize(
    ("tail", "piece"),
    [
        ("TO EVALUATE m LABEL age", "age"),
        ("TO EVALUATE m", "SELECT * FROM t"),
        ("TO EXPLAIN m", "SELECT * FROM t"),
    ],
)
def test_a_label_of_another_type_than_trained(tail: str, piece: str) -> None:
    (statement,) = grammar.parse(f"SELECT * FROM t\n{tail}", "duckdb", "my.sql")
    assert isinstance(statement, Evaluate | Explain)
    with pytest.raises(BadStatement) as caught:
        check.use(statement, SCHEMA, {}, "age", "duckdb", "text")
    message, _, carets = str(caught.value).split("\n")
    assert message.partition(": ")[2] == (
        'the column \'age\' is int64 here, and was text when m was trained; write CAST("age" AS VARCHAR) AS "age"'
    )
    assert carets.count("^") == len(piece)
    check.use(statement, SCHEMA, {}, "age", "duckdb", "boolean")  # numbers are numbers
    check.use(statement, SCHEMA, {}, "age", "duckdb", None)


def test_a_databases_error_points_into_the_statement() -> None:
    statement = _train("LABEL income INTO m")
    assert str(check.refused("no table t", 14, statement.select)) == _lines(
        "my.sql:1: the database says: no table t", "  SELECT * FROM t", "                ^"
    )
    assert "\n  ^^^^^^^^^^^^^^^" in str(check.refused("gone", None, statement.select))


@pytest.mark.parametrize(
    ("error", "piece"),
    [
        (BadSetting("model.hidden_units is a list"), "hidden_units"),
        (BadSetting("'年龄' has no vocabulary"), "年龄"),
        (BadSetting("the label 'income' is text"), "income"),
        (BadSetting("there is no model 'dnnn'"), "dnnn"),
        (BadSetting("no rows"), "SELECT * FROM t"),
    ],
)
def test_what_is_found_without_the_statement_gets_its_place(error: BadInput, piece: str) -> None:
    statement = _train("TO TRAIN dnnn WITH hidden_units=3 COLUMN 年龄 LABEL income INTO m")
    message = check.located(error, statement)
    start = statement.place.script.text.index(piece)
    assert str(message) == str(statement.place.script.error(start, str(error), len(piece)))
