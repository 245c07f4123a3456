"""The job of a statement: an ordinary one, of settings that the statement makes and a person adds to.

What a person says with flags wins over WITH, and WITH over what was derived. A flag that only jobs of another kind have is passed over: one
script trains and predicts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.query.ownsettings import why_not
from elasticdl.spec import edge
from elasticdl.spec.edge import Given
from elasticdl.spec.jobspec import JobKind, JobSpec, settings_of

_NAME_LIMIT = 63


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
    """

    kind: JobKind
    name: str
    made: Mapping[str, object]
    derived: Mapping[str, object]
    asked: Mapping[str, object]
    state: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
        )


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
    """Run a job, showing it and its summary on standard error, and return the summary. Raises BadInput, JobFailed or Interrupted."""
    from elasticdl.job import submit

    return submit.run(spec, sys.stderr)
