"""Messages with values that nobody would send, made from the dataclasses themselves: one that is added is covered without a word here."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from elasticdl.control.protocol.frozen import field_names, replace
from elasticdl.control.protocol.messages import MemberMessage, Note
from elasticdl.control.protocol.status import EventKind
from tests.master.models import model_of

KINDS: tuple[type, ...] = get_args(MemberMessage)
NUMBERS = (-(1 << 63), -1, 0, 0, 1, 1, 2, 3, 4, 5, 10, 1000, 10**9, 1 << 31, 1 << 62, (1 << 63) - 1)
WORDS = (
    "", "note", "bad-input", "nonsense", "{}", '{"slots":"x"}', '{"slots":20000000}', model_of(4), model_of(1 << 16), "unix:/x",
    "tcp:h:1", "tcp:", "..", "/", "\0", "0" * 32, "\ud800", "x" * 200_000, "[" * 20_000,
)  # fmt: skip
FLOATS = (0.0, -1.0, 0.5, 1e308, float("inf"), float("nan"))


def likely(
    draw: random.Random, kind: type, truths: Mapping[str | type, Any], words: Collection[str] = ()
) -> Any:
    """Return a message of a kind that is true in many parts.

    Args:
        draw: decides.
        kind: of the message.
        truths: what a speaker could say, by the name of a field or the type of a value.
        words: further texts that might fit.
    """
    return _value(draw, kind, "", (*words, *WORDS), truths)


def _value(
    draw: random.Random, kind: Any, field: str, words: tuple[str, ...], truths: Mapping[str | type, Any]
) -> Any:
    if field in truths and draw.random() < 0.9:
        return truths[field]
    if kind in truths and draw.random() < 0.8:
        true = truths[kind]
        lie = draw.choice(field_names(type(true)) or ())
        hint = get_type_hints(kind)[lie]
        return replace(true, **{lie: _value(draw, hint, "", words, {})}) if draw.random() < 0.5 else true
    kind = getattr(kind, "__supertype__", kind)
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        return _value(draw, draw.choice(get_args(kind)), field, words, truths)
    if origin in (tuple, frozenset):
        parts = get_args(kind)
        if origin is tuple and parts[-1] is not Ellipsis:
            return tuple(_value(draw, part, field, words, truths) for part in parts)
        count = draw.choice((0, 1, 1, 2, 4, 1500 if draw.random() < 0.1 else 3))
        return origin(_value(draw, parts[0], field, words, truths) for _ in range(count))
    if (names := field_names(kind)) is not None:
        hints = get_type_hints(kind)
        if kind is Note and draw.random() < 0.5:
            truths = {**truths, "kind": EventKind.NOTE}
        return kind(**{name: _value(draw, hints[name], name, words, truths) for name in names})
    if kind is NoneType:
        return None
    if kind is bool:
        return draw.random() < 0.5
    if kind is int:
        return draw.choice(NUMBERS) if draw.random() < 0.8 else draw.randrange(20)
    if issubclass(kind, StrEnum):
        return draw.choice(list(kind))
    if kind is float:
        return draw.choice(FLOATS)
    if kind is bytes:
        return draw.choice((b"", b"\0", b"x" * 1000, b"x" * (5 << 20)))
    assert kind is str, f"no values are known for {kind}"
    return draw.choice(words or WORDS)
