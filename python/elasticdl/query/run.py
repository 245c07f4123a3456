"""Run a script: all of it is read first, so that a mistake in its last statement is found before the first one trains.

`sql` is what people call from Python, `run` what the command line calls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import pyarrow as pa

from elasticdl.errors import BadInput, BadSetting, Interrupted
from elasticdl.files import reading
from elasticdl.job import podsubmit
from elasticdl.query import explaining, grammar, halves, inpods, jobs, newfile, training
from elasticdl.query.answer import Answer
from elasticdl.query.readscript import read_script
from elasticdl.query.registry import Kept, Store, store_of
from elasticdl.query.session import Session
from elasticdl.query.source import DatabaseRefused, Params, open_source
from elasticdl.query.statements import (
    DropModel,
    Evaluate,
    Explain,
    Native,
    Predict,
    ShowModels,
    ShowTrain,
    Statement,
    Train,
)
from elasticdl.spec import edge
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.readers import database_file, database_url, scheme_of

_METRICS_SHOWN = 3


def sql(
    text: str,
    *,
    database: object = None,
    database_secret: str = "",
    tables: Mapping[str, object] | None = None,
    params: Params = (),
    store: str | os.PathLike[str] | None = None,
    **settings: object,
) -> Answer:
    """Run statements of SQL, those that train and use models among them, and return the answer to the last one.

    Args:
        text: one statement, or several with `;` between.
        database: a URL such as `sqlite:///flights.db`, or an open connection; None: the CSV, Parquet and JSON files of this directory are
            tables.
        database_secret: on Kubernetes the Secret that has the URL in place of `database`, as NAME or NAME/KEY; pods read the rows then.
        tables: data frames that are tables, by name; only of DuckDB.
        params: values for the placeholders of the one statement.
        store: where models are kept; `$ELASTICDL_STORE`, or a folder of this user.
        settings: of jobs, as of `elasticdl.train`.

    Raises BadStatement for what can't work, before anything is made; JobFailed; Unwritable; Interrupted.
    """
    return run(
        text,
        database=database,
        database_secret=database_secret,
        tables=tables,
        params=params,
        store=store,
        flags=edge.from_arguments(settings),
        tell=_to_stderr,
    )


def run(
    text: str,
    *,
    flags: Mapping[str, Given],
    tell: Callable[[str], object],
    filename: str = "sql",
    database: object = None,
    database_secret: str = "",
    tables: Mapping[str, object] | None = None,
    params: Params = (),
    store: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    answered: Callable[[Answer], object] = lambda answer: None,
) -> Answer:
    """Run statements.

    Args:
        text: the statements.
        flags: settings of jobs.
        tell: takes lines for the person.
        filename: how messages call the text.
        database: as of `sql`.
        database_secret: as of `sql`.
        tables: as of `sql`.
        params: as of `sql`.
        store: as of `sql`.
        dry_run: say what would be done, and do nothing.
        answered: gets each answer as soon as it is there.

    Raises as `sql`.
    """
    spec = jobs.check_flags(flags)
    database = database_url(database) if isinstance(database, str) else database
    given = os.fspath(store) if store is not None else os.environ.get("ELASTICDL_STORE", "")
    if database_secret:
        _check_alone(database, tables, params)
        return _run_in_pods(text, spec, database_secret, given, flags, tell, filename, dry_run, answered)
    if spec.on_kubernetes:
        inpods.check_here(podsubmit.prepare(spec), given)
    models = Store(store_of(given, os.environ))
    source = open_source(database, tables, is_new=_is_new(database, text, filename, dry_run))
    try:
        statements = read_script(text, source.dialect, filename)
        if not statements:
            raise BadSetting(f"{filename}: there is no statement")
        if params and len(statements) > 1:
            raise BadSetting(f"{filename}: params are for one statement; the text has {len(statements)}")
        session = Session(source, models, params, flags, dry_run, tell)
        answers = []
        for statement in statements:
            try:
                answers.append(_answer(statement, session))
            except (Interrupted, KeyboardInterrupt):
                kept = ", and its model is not kept" if isinstance(statement, Train) else ""
                raise Interrupted(f"interrupted: the statement has ended without a result{kept}") from None
            answered(answers[-1])
    finally:
        source.close()
    return replace(answers[-1], all=tuple(answers))


def _is_new(database: object, text: str, filename: str, dry_run: bool) -> bool:
    """Tell whether a script makes the file of its database, which is not there. Raises BadStatement, BadSetting."""
    if not isinstance(database, str) or not (file := database_file(database)) or Path(file).exists():
        return False
    is_made = newfile.creates(grammar.parse(text, scheme_of(database), filename))
    if is_made and dry_run:
        raise BadSetting(
            f"--database: there is no file {file}, which the first statement of the script would make; a dry run makes nothing, so run "
            "that statement first"
        )
    return is_made


def _check_alone(database: object, tables: object, params: object) -> None:
    """Check that a database in a Secret is the only one, and that nothing of this process has to come to it. Raises BadSetting."""
    for name, value in (("--database", database), ("tables=", tables), ("params=", params)):
        if value:
            raise BadSetting(
                f"{name} is not for --database_secret: a pod reads the rows, by the URL in the Secret, and has nothing of this process"
            )


def _run_in_pods(
    text: str,
    spec: JobSpec,
    secret: str,
    store: str,
    flags: Mapping[str, Given],
    tell: Callable[[str], object],
    filename: str,
    dry_run: bool,
    answered: Callable[[Answer], object],
) -> Answer:
    pods = inpods.DataPods.of(spec, secret, store)
    if dry_run:
        tell(pods.manifests())
        return Answer(text)
    answers = inpods.run(text, pods, flags, tell, filename, answered)
    return replace(answers[-1], all=tuple(answers))


def _answer(statement: Statement, session: Session) -> Answer:
    match statement:
        case Train() | Predict() | Evaluate():
            return halves.run(statement, session)
        case Explain():
            return explaining.explain(statement, session, halves.write_name())
        case _:
            return answer_without_job(statement, session)


def answer_without_job(statement: ShowTrain | ShowModels | DropModel | Native, session: Session) -> Answer:
    """Do what needs the store or the database alone. Raises BadStatement, Unwritable."""
    match statement:
        case ShowTrain():
            version = session.find(statement.model)
            return Answer(
                statement.place.text,
                training.one_row({"model": str(version), "statement": version.json["statement"]}),
                version,
            )
        case ShowModels():
            return Answer(statement.place.text, _models(statement, session))
        case DropModel():
            return _drop(statement, session)
        case Native():
            return _native(statement, session)
    assert_never(statement)


def _models(statement: ShowModels, session: Session) -> pa.Table:
    """Return the versions of models, the oldest of each first; of one that can't be read the name alone, and `tell` receives why."""
    rows: list[tuple[object, ...]] = []
    for one in session.store.versions(statement.like):
        try:
            rows.append((one.name, one.version, *_facts(one.json)))
        except BadInput as error:
            session.tell(str(error))
            rows.append((one.name, one.version, None, None, None, None))
    names = ("model", "version", "target", "label", "rows", "metrics")
    kinds = (pa.string(), pa.string(), pa.string(), pa.string(), pa.int64(), pa.string())
    return pa.table({name: pa.array([row[at] for row in rows], kinds[at]) for at, name in enumerate(names)})


def _facts(kept: Kept) -> tuple[str, str | None, int, str]:
    """Return a version's target, label, rows that were trained on, and first metrics. Raises BadSetting."""
    try:
        label = kept["label"]
        metrics = reading.fields(kept["metrics"])
        return (
            reading.text(kept["target"]),
            None if label is None else reading.text(label),
            reading.integer(reading.field(kept["rows"], "training")),
            ", ".join(
                f"{name} {reading.number(metrics[name], finite=False):.4g}"
                for name in list(metrics)[:_METRICS_SHOWN]
            ),
        )
    except ValueError as error:
        raise kept.broken(str(error)) from None


def _drop(statement: DropModel, session: Session) -> Answer:
    try:
        session.store.named(str(statement.model))
    except BadInput as error:
        if statement.if_exists:
            return Answer(statement.place.text)
        raise statement.model.place.error(str(error)) from None
    if session.dry_run:
        session.tell(f"would remove the model {statement.model}")
        return Answer(statement.place.text)
    count = session.store.drop(str(statement.model))
    session.tell(
        f"removed {count} {'version' if count == 1 else 'versions'} of the model {statement.model.name}"
    )
    return Answer(statement.place.text)


def _native(statement: Native, session: Session) -> Answer:
    """Let the database do what is its own."""
    if session.dry_run:
        session.tell(
            f"{statement.place.script.filename}:{statement.place.script.line(statement.place.start)}: is the database's own"
        )
        return Answer(statement.text)
    try:
        return Answer(statement.text, session.source.run(statement.text, session.params))
    except DatabaseRefused as error:
        start = statement.place.start + (error.place or 0)
        raise statement.place.script.error(
            min(start, statement.place.end), f"the database says: {error.reason}"
        ) from None


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
