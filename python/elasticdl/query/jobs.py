"""The job of a statement: an ordinary one, of settings that the statement makes and a person adds to.

What a person says with flags wins over WITH, and WITH over what was derived. A flag that only jobs of another kind have is passed over: one
script trains and predicts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.query.ownsettings import why_not
from elasticdl.spec import edge
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobKind, JobSpec, settings_of

_NAME_LIMIT = 63
_PASSWORDS = ("PGPASSWORD", "MYSQL_PWD", "MAXCOMPUTE_AK", "MAXCOMPUTE_SK")


def check_flags(flags: Mapping[str, Given]) -> None:
    """Check settings that are given beside a script, before anything is read. Raises BadSetting."""
    for name, given in flags.items():
        if why := why_not(name):
            raise BadSetting(f"{given.where} is not for statements: {why}")
    placeholders = {
        "model_def": Given("model.custom_model", "model_def"),
        "training_data": Given("rows", "rows"),
    }
    edge.build({**flags, **placeholders})


def spec_of(
    kind: JobKind,
    name: str,
    made: Mapping[str, object],
    derived: Mapping[str, object],
    asked: Mapping[str, object],
    flags: Mapping[str, Given],
) -> JobSpec:
    """Return the settings of a statement's job.

    Args:
        kind: of the job.
        name: of the model, after which the job is called.
        made: what only the statement says.
        derived: from the table; all else wins over it.
        asked: by WITH.
        flags: of the command, or keyword arguments.

    Raises BadSetting for settings that don't go together.
    """
    own = settings_of(kind)
    given = {"job_name": Given(name[:_NAME_LIMIT], "the model's name")}
    given |= {key: Given(value, key) for key, value in derived.items()}
    given |= {key: Given(value, f"engine.{key}") for key, value in asked.items()}
    given |= {key: one for key, one in flags.items() if key in own}
    given |= {key: Given(value, key) for key, value in made.items()}
    return edge.build(given, kind)


def run(spec: JobSpec) -> Mapping[str, Any]:
    """Run a job, showing it and its summary on standard error, and return the summary. Raises BadInput, JobFailed or Interrupted.

    Its processes never ask the database, and don't get the passwords that the environment has.
    """
    from elasticdl.job import submit

    kept = {name: os.environ.pop(name) for name in _PASSWORDS if name in os.environ}
    try:
        return submit.run(spec, sys.stderr)
    finally:
        os.environ.update(kept)
