"""The two halves of a statement that has a job: rows to files before it, and what becomes of its result behind it.

They share nothing but a `Half`, which has no data in it, and the store: the second may run in another process, in another pod, and a second
time if the first try was lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from elasticdl.errors import JobFailed
from elasticdl.query import jobs, training, using
from elasticdl.query.answer import Answer
from elasticdl.query.jobs import Half
from elasticdl.query.registry import Rooms
from elasticdl.query.session import Session, placed
from elasticdl.query.statements import Evaluate, Predict, Train
from elasticdl.query.training import JobFacts
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobKind, JobSpec

WithJob = Train | Predict | Evaluate


def run(statement: WithJob, session: Session) -> Answer:
    """Do both halves in this process, with the job between them. Raises what they raise."""
    name = write_name()
    with Rooms(session.store) as rooms:
        half = begin(statement, session, rooms)
        if isinstance(half, Answer):
            return half
        with placed(statement):
            spec = spec_of(half, session.flags)
        for why in half.reasons_of(session.flags):
            session.tell(f"  {why}")
        try:
            summary = jobs.run(spec)
            return end(statement, session, rooms, half, JobFacts.of(spec), summary, name)
        except JobFailed as error:
            if isinstance(statement, Train):
                for directory in rooms.keep(str(error)):
                    session.tell(f"the rows are kept in {directory} for a week")
            raise


def write_name() -> str:
    """Return a name for a statement's write of its result, which no other one has."""
    return secrets.token_hex(8)


def begin(statement: WithJob, session: Session, rooms: Rooms) -> Half | Answer:
    """Put the rows of a statement into files; of a dry run return what would be done.

    Raises BadStatement before anything is made, JobFailed, Unwritable later.
    """
    match statement:
        case Train():
            return training.begin(statement, session, rooms)
        case Predict():
            return using.begin_predict(statement, session, rooms)
        case Evaluate():
            return using.begin_evaluate(statement, session, rooms)
    assert_never(statement)


def spec_of(half: Half, flags: Mapping[str, Given]) -> JobSpec:
    """Return the settings of a statement's job. Raises BadSetting, BadModel."""
    spec = half.spec(flags)
    return training.with_output(spec) if half.kind is JobKind.TRAIN else spec


def end(
    statement: WithJob,
    session: Session,
    rooms: Rooms,
    half: Half,
    job: JobFacts,
    summary: Mapping[str, Any],
    name: str,
) -> Answer:
    """Do what follows a job that has ended well, unless that has been done.

    Args:
        statement: whose job it was.
        session: with the database and the models.
        rooms: of this try.
        half: what the first half left.
        job: what is kept of the job's settings.
        summary: of the job.
        name: of the write of the result.

    Raises BadStatement, JobFailed, Unwritable.
    """
    match statement:
        case Train():
            entry = rooms.found(statement.model.name, half.state["version"])
            return training.end(statement, session, entry, half, job, summary)
        case Predict():
            return using.end_predict(statement, session, half, summary, name)
        case Evaluate():
            return using.end_evaluate(statement, session, half, summary, name)
    assert_never(statement)


def work_of(half: Half) -> str:
    """Return the name of the directory that the first half has made for the statement."""
    return Path(str(half.state["work"])).name
