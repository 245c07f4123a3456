"""The job of a statement: an ordinary one, of settings that the statement makes and a person adds to.

What a person says with flags wins over WITH, and WITH over what was derived. A flag that only jobs of another kind have is passed over: one
script trains and predicts.
"""

from __future__ import annotations

import os
import secrets
import string
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl.cluster.kubernetes.api import ApiError, Unreachable
from elasticdl.errors import BadSetting, Interrupted
from elasticdl.job import podjob
from elasticdl.job.display import open_display, print_end, print_log_end
from elasticdl.query.ownsettings import why_not
from elasticdl.spec import edge
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobKind, JobSpec, settings_of

_NAME_LIMIT = 63
_POD_NAME_LIMIT = 40
_LETTERS = frozenset(string.ascii_lowercase + string.digits)
_ROWS_OF_ONE = 100_000
"""A worker evaluates some 15,000 records of a table in a second, and takes some seconds to import its framework."""
_REMOVAL_SECONDS = 60.0
"""Twice the grace period of pods: another job of the name may follow."""
PASSWORDS = ("PGPASSWORD", "MYSQL_PWD", "MAXCOMPUTE_AK", "MAXCOMPUTE_SK")
"""Variables of the environment that programs of databases read, and processes with a person's code don't get."""


@dataclass(frozen=True, slots=True)
class Half:
    """What the first half of a statement, rows to files, leaves to its job and to its second half; none of it is data.

    Attributes:
        kind: of the job.
        name: of the model, after which the job is called.
        made: settings that only the statement says.
        derived: those that follow from the table; all else wins over them.
        asked: those of WITH.
        state: what the second half needs to know, as JSON.
        notes: what a person should know, such as what each column became.
        reasons: of what was derived and is no note, by setting; who says a setting needs none.
    """

    kind: JobKind
    name: str
    made: Mapping[str, object]
    derived: Mapping[str, object]
    asked: Mapping[str, object]
    state: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    def reasons_of(self, flags: Mapping[str, Given]) -> list[str]:
        """Return the reasons of settings that neither WITH nor a flag gave."""
        return [why for name, why in self.reasons.items() if name not in self.asked and name not in flags]

    def spec(self, flags: Mapping[str, Given]) -> JobSpec:
        """Return the settings of the job, to which flags may add. Raises BadSetting for settings that don't go together."""
        return spec_of(self.kind, self.name, self.made, self.derived, self.asked, flags)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "made": dict(self.made),
            "derived": dict(self.derived),
            "asked": dict(self.asked),
            "state": dict(self.state),
            "notes": list(self.notes),
            "reasons": dict(self.reasons),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Half:
        """Read what `to_json` wrote. Raises KeyError, ValueError."""
        return cls(
            JobKind(body["kind"]),
            body["name"],
            body["made"],
            body["derived"],
            body["asked"],
            body["state"],
            tuple(body["notes"]),
            body["reasons"],
        )


def workers(rows: int) -> tuple[int, str]:
    """Return how many workers predict or evaluate so many rows, and why."""
    if rows <= _ROWS_OF_ONE:
        return 1, f"1 worker: {rows:,} rows take it seconds, and another one would take as long to start"
    return 2, f"2 workers: {rows:,} rows are worth the start of another one; --num_workers says more"


def check_flags(flags: Mapping[str, Given]) -> JobSpec:
    """Check settings that are given beside a script, before anything is read, and return what all its jobs have. Raises BadSetting."""
    for name, given in flags.items():
        if why := why_not(name):
            raise BadSetting(f"{given.where} is not for statements: {why}")
    placeholders = {
        "model_def": Given("sql.custom_model", "model_def"),
        "training_data": Given("/rows", "rows"),
    }
    return edge.build({**flags, **placeholders})


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
    spec = edge.build(given, kind)
    if spec.on_kubernetes and "job_name" not in {*asked, *flags}:
        spec = replace(spec, job_name=pod_name(name, secrets.token_hex(2)))
    return spec


def pod_name(model: str, token: str) -> str:
    """Return a name for the job of a model on Kubernetes, which knows small letters and digits; `token` makes it another one each time."""
    letters = (letter if letter in _LETTERS else "-" for letter in model.lower())
    name = "".join(letters).strip("-")[: _POD_NAME_LIMIT - len(token) - 5].strip("-")
    return f"sql-{name}-{token}" if name else f"sql-{token}"


def run(spec: JobSpec) -> Mapping[str, Any]:
    """Run a job, showing it and its summary on standard error, and return the summary. Raises BadInput, JobFailed or Interrupted.

    Its processes never ask the database, and don't get the passwords that the environment has.
    """
    from elasticdl.job import submit

    if spec.on_kubernetes:
        return _run_in_pods(spec)
    kept = {name: os.environ.pop(name) for name in PASSWORDS if name in os.environ}
    try:
        return submit.run(spec, sys.stderr)
    finally:
        os.environ.update(kept)


def _run_in_pods(spec: JobSpec) -> Mapping[str, Any]:
    """Run a job that is part of a statement: unlike others it is removed when it is done, and when the person leaves."""
    from elasticdl.job import podrun, submit

    began = time.time()
    job = podrun.submit(spec)
    display = open_display(began, spec.log_loss_steps)
    display.notice(f"{job.name} has been submitted to the namespace {spec.namespace}")
    try:
        summary = podrun.advised(job, podjob.watch(job, podrun.shown_on(display), display.notice))
    except BaseException as error:
        with suppress(ApiError, Unreachable):
            job.remove(0.0)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; the job {job.name} has been removed") from None
        raise
    finally:
        display.close()
    print_log_end(summary)
    print_end(summary, sys.stderr)
    if summary["exit_code"] == 0:
        job.remove(_REMOVAL_SECONDS)
    logs = f"elasticdl logs {job.name} --namespace={spec.namespace}"
    return submit.done_or_raise(dict(summary), int(summary["exit_code"]), logs)
