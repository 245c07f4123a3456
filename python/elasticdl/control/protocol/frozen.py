"""Copies of large frozen values.

`dataclasses.replace` reads and writes every field one by one, which for a state machine of thirty fields is most of the cost of a
transition, and members make several in each training step. A frozen dataclass without slots is copied as one dictionary instead; for
all others this is `dataclasses.replace`. Type checkers see the original, so wrong names and types are found by them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy of a frozen dataclass with some fields changed."""
        fields = getattr(value, "__dict__", None)
        if fields is None:
            return dataclasses.replace(value, **changes)
        copy = object.__new__(value.__class__)
        copy.__dict__.update(fields, **changes)
        return copy
