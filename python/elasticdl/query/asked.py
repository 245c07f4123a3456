"""What a person's command asks of a pod that does half a statement: a file of JSON, without the database's URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Act(StrEnum):
    """What is asked of a pod."""

    BEGIN = "begin"
    """The first half of a statement, or all of one that has no job."""
    END = "end"
    FORGET = "forget"
    """Remove what a first half has left, for which no second one will come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a pod.

    Attributes:
        act: what.
        run: names this run of this statement, and no other.
        store: the directory of models.
        text: the whole script.
        filename: how messages call it.
        at: which of its statements, from 0.
        seed: of the shuffle; None: the default.
        half: what the first half has left.
        job: what is kept of the job's settings.
        summary: of the job, what is used of it.
        why: the job failed; empty if it did not.
    """

    act: Act
    run: str
    store: str
    text: str = ""
    filename: str = ""
    at: int = 0
    seed: object = None
    half: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Asked:
        """Read what `to_json` wrote."""
        return cls(**{**body, "act": Act(body["act"])})
