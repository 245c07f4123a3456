"""One half of a statement in a pod, which alone has the URL of the database: what is asked is a file, the answer a line of the log.

`python -m elasticdl.query.pod REQUEST`. The answer has settings, counts and messages, and no row of the database. What is refused is an
answer as well. A process that ends without one is tried again, so each half can be done twice: the first begins anew, the second finds out
what has been done.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes.datapod import ANSWER, URL_ENVIRONMENT
from elasticdl.errors import BadInput, BadSetting, ElasticDLError
from elasticdl.query import needs
from elasticdl.query.asked import Act, Asked
from elasticdl.spec.edge import Given
from elasticdl.spec.readers import database_url, scheme_of

_TEXT_LIMIT = 3000
_KEEP_NOTE = ("postgresql", "postgres", "duckdb")
"""Databases in which a comment on a table is part of the transaction that appends to it."""


def main(arguments: list[str]) -> int:
    """Do what the file asks, and print the answer."""
    url = database_url(os.environ.pop(URL_ENVIRONMENT, "").strip())  # files end with a line break
    asked = Asked.from_json(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    told: list[str] = []
    try:
        needs.check()
        body = answered(asked, url, told)
    except ElasticDLError as error:
        body = {"error": str(error)[:_TEXT_LIMIT], "is_input": isinstance(error, BadInput)}
    print(f"{ANSWER}{json.dumps({**body, 'told': told})}", flush=True)
    return 0


def answered(asked: Asked, url: str, told: list[str]) -> dict[str, Any]:
    """Return the answer to what is asked; lines for the person go to `told`. Raises ElasticDLError."""
    from elasticdl.query.readscript import read_script
    from elasticdl.query.registry import Store
    from elasticdl.query.session import Session
    from elasticdl.query.source import open_source

    store = Store(Path(asked.store))
    if asked.act is Act.FORGET:
        return {"kept": list(map(str, store.forget(asked.run, asked.why)))}
    if "://" not in url:
        raise BadSetting(
            "--database_secret: the Secret's value is no URL of a database, such as postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    source = open_source(url)
    try:
        statements = read_script(asked.text, source.dialect, asked.filename)
        for statement in statements:
            _check(statement, url)
        if not statements:
            raise BadSetting(f"{asked.filename}: there is no statement")
        flags = {"seed": Given(asked.seed, "--seed")} if asked.seed is not None else {}
        session = Session(source, store, flags=flags, tell=told.append, in_pod=True)
        return {"count": len(statements), **_done(statements[asked.at], session, asked)}
    finally:
        source.close()


def _done(statement: Any, session: Any, asked: Asked) -> dict[str, Any]:
    from elasticdl.errors import JobFailed
    from elasticdl.query import explaining, halves
    from elasticdl.query.answer import Answer
    from elasticdl.query.jobs import Half
    from elasticdl.query.registry import Rooms
    from elasticdl.query.run import answer_without_job
    from elasticdl.query.statements import Explain, Train
    from elasticdl.query.training import JobFacts

    if isinstance(statement, Explain):
        return {"answer": _plain(explaining.explain(statement, session, asked.run))}
    if not isinstance(statement, halves.WithJob):
        return {"answer": _plain(answer_without_job(statement, session))}
    with Rooms(session.store) as rooms:
        if asked.act is Act.BEGIN:
            session.store.forget(asked.run)
            half = halves.begin(statement, session, rooms)
            assert isinstance(half, Half), "a dry run has no pod"
            rooms.hold(asked.run)
            return {"half": half.to_json()}
        half = Half.from_json(asked.half)
        work = session.store.resume_work(halves.work_of(half))
        if work is not None:
            rooms.take(work)
        try:
            answer = halves.end(
                statement, session, rooms, half, JobFacts(**asked.job), asked.summary, asked.run
            )
        except JobFailed as error:
            if isinstance(statement, Train):
                rooms.keep(str(error))
            raise
        assert isinstance(answer, Answer)
        return {"answer": _plain(answer)}


def _check(statement: Any, url: str) -> None:
    """Check that nothing is asked whose answer would be rows, or whose doing twice would show. Raises BadStatement at its place."""
    from elasticdl.query import attributes
    from elasticdl.query.explaining import GRADIENTS
    from elasticdl.query.source import Into
    from elasticdl.query.statements import Evaluate, Explain, Native, Predict, Train

    if isinstance(statement, Native):
        raise statement.place.error(
            "this is the database's own; with --database_secret its rows stay in the cluster: give it to the database itself"
        )
    if not isinstance(statement, Train | Predict | Evaluate | Explain):
        return
    wanted = attributes.wanted(statement)
    rows = isinstance(statement, Predict) or (
        isinstance(statement, Explain)
        and statement.method is not None
        and statement.method.name.lower() == GRADIENTS
    )
    if rows and getattr(statement, "table", None) is None:
        raise statement.place.error(
            "the answer to this is rows, and with --database_secret they stay in the cluster: name a table that they go to"
        )
    if wanted.plot is not None:
        raise attributes.place_of(statement.attributes, "explain.plot").error(
            "explain.plot: the drawing would be a file of a pod; leave it out, or run this without --database_secret"
        )
    if wanted.into == Into.APPEND and scheme_of(url) not in _KEEP_NOTE:
        raise attributes.place_of(statement.attributes, "predict.into").error(
            "predict.into='append': this database keeps no note with the rows that were appended, and a pod that is tried again does it "
            "twice; name a new table"
        )


def _plain(answer: Any) -> dict[str, Any]:
    """Return an answer as JSON has it."""
    version = answer.model
    model: Mapping[str, Any] | None = None
    if version is not None:
        model = {
            "name": version.name,
            "version": version.version,
            "directory": str(version.directory),
            "json": version.json,
        }
    return {
        "statement": answer.statement,
        "columns": None if answer.table is None else answer.table.to_pydict(),
        "model": model,
        "notes": list(answer.notes),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
