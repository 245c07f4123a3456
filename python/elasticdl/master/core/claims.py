"""What no process of a job can say truly, whatever has happened to it; what depends on the way of training is in `claims.py` of its room.

A master compares every message with what it knows before anything of it is noted. Who says what can't be is refused: a process that
follows the protocol never is, however late its words come, so nothing here may depend on when they do. Pure: no I/O, no clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from elasticdl.control.protocol.frozen import field_names
from elasticdl.control.protocol.messages import (
    NOTES,
    Exported,
    FoundShards,
    MemberMessage,
    Note,
    ProgramFailed,
    Register,
)
from elasticdl.control.protocol.psmessages import Enroll, FoundModel
from elasticdl.control.protocol.view import MemberId
from elasticdl.files.output import unpublished_path
from elasticdl.files.reading import LARGEST, is_utf8
from elasticdl.master.core.founddata import LoopSettings, wrong_plan

LONGEST_TEXT = 1 << 17
"""Characters of a text; the longest are tracebacks, of which a worker sends half as many."""
MOST_FIGURES = 1000
"""Metrics in one message."""
LARGEST_RESULT = 4 << 20
"""Bytes of what one evaluation task has added up."""
BEFORE_REGISTRATION = (FoundShards, FoundModel, Note, ProgramFailed, Register, Enroll)
"""What a process may say before it has registered; what else comes then was meant for the connection before, and is said again."""


class JobSettings(LoopSettings, Protocol):
    """What a master takes from the job's settings."""

    @property
    def output(self) -> Path | None:
        """Return where the result is wanted."""


def impossible(name: str, member: MemberId, job: JobSettings, message: MemberMessage) -> str | None:
    """Return why no process of any job with these settings says this on its connection, None if one may."""
    match message:
        case FoundShards(_, _, plan) if why := wrong_plan(job, plan):
            return why
        case FoundShards(shards, validation, plan) if plan is not None:
            of_files = job.processes and sum(shard.count for shard in shards) == plan.records
            if plan.batch_size < 1 or validation or not (of_files or shards == plan.shards()):
                return f"its plan is {plan}, and its data {shards}, {validation}"
            words = tuple(word for shard in shards for word in (shard.name, shard.fingerprint))
            return _out_of_bounds(plan, "plan") or _out_of_bounds(words, "the name of a shard")
        case FoundShards(shards, validation):
            # Their numbers are the user's reader's: what is wrong with them ends the job, with the reason.
            words = tuple(
                word for shard in (*shards, *validation) for word in (shard.name, shard.fingerprint)
            )
            return _out_of_bounds(words, "the name of a shard, or its fingerprint,")
        case FoundModel():
            return None  # it is read as a whole
        case Register() | Enroll() if (message.name, message.member) != (name, member):
            return f"it is {message.name} ({message.member})"
        case Register() | Enroll() if not _is_address(message):
            return f"it listens at {message.address[:200]!r}"
        case Note(kind) if kind not in NOTES:
            return f"a note of kind {kind[:40]!r}"
        case Exported(_, state, path):
            mine = "" if job.output is None else unpublished_path(job.output, state.step, state.view)
            if path not in ("", mine):
                return f"the result lies at {path[:200]!r}, and not at {mine!r}"
    return _out_of_bounds(message, "")


def _is_address(message: Register | Enroll) -> bool:
    kind, _, rest = message.address.partition(":")
    if not message.address:
        return isinstance(message, Enroll)  # nobody connects to such a worker
    return kind == "unix" or (kind == "tcp" and bool(rest.rpartition(":")[0]))


_UNBOUNDED = (bool, float, type(None))


def _out_of_bounds(value: object, what: str) -> str | None:
    """Return which number, text or list is none that a process of a job has."""
    if isinstance(value, _UNBOUNDED):
        return None
    if isinstance(value, bytes):
        return None if len(value) <= LARGEST_RESULT else f"{what} has {len(value):,} bytes"
    if isinstance(value, int):
        return None if 0 <= value <= LARGEST else f"{what} is {value}"
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            return f"{what} has {len(value):,} characters"
        return None if value.isascii() or is_utf8(value) else f"{what} is no text"
    if what in ("metrics", "values") and isinstance(value, tuple) and len(value) > MOST_FIGURES:
        return f"{len(value):,} metrics"
    kind: Any = type(value)
    if (names := field_names(kind)) is not None:
        for name in names:
            if (bad := _out_of_bounds(getattr(value, name), name)) is not None:
                return bad
        return None
    assert isinstance(value, tuple | frozenset), "messages have nothing else"
    for one in value:
        if (bad := _out_of_bounds(one, what)) is not None:
            return bad
    return None
