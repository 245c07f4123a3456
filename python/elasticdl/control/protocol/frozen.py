"""Copies of frozen values, and the names of their fields.

Most values of the protocol are structs of msgspec: to define one takes a twentieth of what a frozen dataclass takes, of which each
process of a job defines a hundred when it starts, and to make one a sixth. `dataclasses.replace` reads and writes every field one by one,
which for a state machine of thirty fields is most of the cost of a transition, and members make several in each training step. A frozen
dataclass without slots is copied as one dictionary instead; for all others this is `dataclasses.replace`. Type checkers see the original,
so wrong names and types are found by them.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a frozen value with some fields changed."""
        fields = getattr(value, "__dict__", None)
        if fields is not None:
            copy = object.__new__(value.__class__)
            copy.__dict__.update(fields, **changes)
            return copy
        if isinstance(value, Struct):
            return structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)


@cache
def field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields that a value of this type has, in order; None for what is no such value."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    named: tuple[str, ...] | None = getattr(kind, "_fields", None)
    return named
