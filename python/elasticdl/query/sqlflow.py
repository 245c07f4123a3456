"""What the steps of an SQLFlow server call: `runtime/elasticdl/__init__.py` of their image has `from elasticdl.query.sqlflow import *`.

SQLFlow's server makes a program of each statement, which it runs in a container of its own. Here that program runs the statement as it was
written, `original_sql`; what the server has made of it otherwise, such as feature columns, is passed over. A step ends as a command does:
bad input is a line on standard error and exit code 2.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from elasticdl.errors import BadInput, BadSetting, ElasticDLError
from elasticdl.query import datasource as datasources
from elasticdl.query import explaining, grammar, halves, needs, responses
from elasticdl.query.modeltable import ModelTable
from elasticdl.query.registry import Store, store_of
from elasticdl.query.session import Session
from elasticdl.query.source import open_source
from elasticdl.query.statements import Evaluate, Explain, Predict, Statement, Train

__all__ = ["evaluate", "explain", "pred", "show_train", "train"]

_TENSORFLOW = 0
"""SQLFlow's number of the kind of a model."""
_Uses = TypeVar("_Uses", Predict, Evaluate, Explain)


def train(
    *,
    datasource: str,
    original_sql: str,
    save: str,
    select: str = "",
    validation_select: str = "",
    estimator_string: str = "",
    model_image: str = "",
    **others: object,
) -> None:
    """Train a model, and keep it in the table that SQLFlow's server looks for.

    Args:
        datasource: SQLFlow's name of the database.
        original_sql: the statement.
        save: the name of the model, and of its table.
        select: for the server's sake kept with the model, like the next ones.
        validation_select: of the statement.
        estimator_string: what follows TO TRAIN.
        model_image: of the steps that use the model.
        others: what the server has derived.

    Raises SystemExit.
    """
    with _step(datasource) as session:
        statement = _only(_without_image(original_sql, model_image, estimator_string), session)
        if not isinstance(statement, Train):
            raise _other(original_sql, "TO TRAIN")
        table = ModelTable(session.source, save)
        table.check()
        version = halves.run(statement, session).model
        assert version is not None, "a training without --dry_run makes a model"
        known = {
            "model_type": _TENSORFLOW,
            "original_sql": original_sql,
            "select": select,
            "validation_select": validation_select,
            "estimator": estimator_string,
            "model_repo_image": model_image,
        }
        table.write(version, known)
        session.tell(f"trained {version}, which is in the table {save}")


def pred(*, datasource: str, original_sql: str, **others: object) -> None:
    """Predict into the table that the statement names. Arguments and errors as of `train`."""
    with _step(datasource) as session:
        statement = _only(original_sql, session)
        if not isinstance(statement, Predict):
            raise _other(original_sql, "TO PREDICT")
        halves.run(_with_model(statement, session), session)


def evaluate(*, datasource: str, original_sql: str, **others: object) -> None:
    """Evaluate a model; metrics are printed if no table is named. Arguments and errors as of `train`."""
    with _step(datasource) as session:
        statement = _only(original_sql, session)
        if not isinstance(statement, Evaluate):
            raise _other(original_sql, "TO EVALUATE")
        answer = halves.run(_with_model(statement, session), session)
        _print(answer.table if statement.table is None else None)


def explain(*, datasource: str, original_sql: str, **others: object) -> None:
    """Explain a model; the importance of columns is printed if no table is named. Arguments and errors as of `train`."""
    with _step(datasource) as session:
        statement = _only(original_sql, session)
        if not isinstance(statement, Explain):
            raise _other(original_sql, "TO EXPLAIN")
        answer = explaining.explain(_with_model(statement, session), session, halves.write_name())
        _print(answer.table if statement.table is None else None)


def show_train(*, datasource: str, model_name: str, **others: object) -> None:
    """Print the statement that trained a model. Arguments and errors as of `train`."""
    with _step(datasource) as session:
        known = ModelTable(session.source, model_name).known()
        _print(pa.table({"Model": [model_name], "Train Statement": [str(known.get("original_sql", ""))]}))


@contextmanager
def _step(datasource: str) -> Iterator[Session]:
    """Open a session, and end the process if something fails in it."""
    try:
        needs.check()
        source = open_source(datasources.url_of(datasource))
        try:
            yield Session(source, Store(store_of("", os.environ)), tell=_tell)
        finally:
            source.close()
    except ElasticDLError as error:
        _tell(f"error: {error}")
        raise SystemExit(2 if isinstance(error, BadInput) else 1) from None


def _only(text: str, session: Session) -> Statement:
    statements = grammar.parse(text, session.source.dialect, "statement")
    if len(statements) != 1:
        raise BadSetting(f"a step of SQLFlow is one statement; received {len(statements)}")
    return statements[0]


def _without_image(text: str, image: str, estimator: str) -> str:
    """Return a statement whose model has no image before it: `TO TRAIN IMAGE/MODEL` is SQLFlow's, and the step runs in that image."""
    if not image:
        return text
    named = rf"(\bTRAIN\s+)['\"`]?{re.escape(image)}/({re.escape(estimator)})['\"`]?"
    return re.sub(named, r"\1\2", text, count=1, flags=re.IGNORECASE)


def _other(text: str, verb: str) -> BadSetting:
    return BadSetting(f"SQLFlow wants this step to be a statement with {verb}; received {text}")


def _with_model(statement: _Uses, session: Session) -> _Uses:
    """Return a statement with the version of its model that the model's table has."""
    version = ModelTable(session.source, statement.model.name).model(session.store)
    return replace(statement, model=replace(statement.model, version=version.version))


def _print(table: pa.Table | None) -> None:
    for line in responses.lines(table) if table is not None else ():
        print(line)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
