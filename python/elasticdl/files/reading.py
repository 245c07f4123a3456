"""JSON that somebody else may have written: never longer than a limit, and each value of the type that is expected.

Whatever is not as expected is a ValueError, whose reason a reader of a format puts into an error of its own, with the file's name.
Python's conversions (`int(True)`, `float("nan")`, `bool("no")`) would take other values for the expected ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

_Record = TypeVar("_Record")

LONGEST = 64 << 20
"""Bytes of a file; those of a job of a million shards have less."""
LARGEST = (1 << 63) - 1
"""A whole number, if not said otherwise: what the core and most other programs can hold."""


def load(content: bytes | str) -> Any:
    """Parse JSON. Raises ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_file(path: Path) -> Any:
    """Parse a file of JSON. Raises OSError, ValueError."""
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} bytes")
    return load(content)


def integer(value: object, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number from `least` to `most`. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected a whole number from {least} to {most}, received {_shown(value)}")
    return value


def number(value: object, *, finite: bool = True) -> float:
    """Return a number. Raises ValueError, also for one that is not finite unless that is allowed."""
    if type(value) is int:
        return float(integer(value, -LARGEST))
    if type(value) is not float or (finite and not math.isfinite(value)):
        raise ValueError(f"expected a number, received {_shown(value)}")
    return value


def flag(value: object) -> bool:
    """Return true or false. Raises ValueError."""
    if type(value) is not bool:
        raise ValueError(f"expected true or false, received {_shown(value)}")
    return value


def text(value: object) -> str:
    """Return text that can be written as UTF-8. Raises ValueError."""
    if type(value) is not str:
        raise ValueError(f"expected text, received {_shown(value)}")
    if not is_utf8(value):
        raise ValueError(f"expected text, received {_shown(value)}")
    return value


def path(value: object) -> Path:
    """Return a path of this machine, which need not be UTF-8. Raises ValueError."""
    if type(value) is not str or "\0" in value:
        raise ValueError(f"expected a path, received {_shown(value)}")
    return Path(value)


def is_utf8(value: str) -> bool:
    """Tell whether text can be written as UTF-8; of the names of files, which are bytes, Python makes text that can't."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def items(value: object, many: int | None = None) -> list[Any]:
    """Return the items of an array, `many` of them if that is given. Raises ValueError."""
    if type(value) is not list or (many is not None and len(value) != many):
        raise ValueError(
            f"expected {'an array' if many is None else f'{many} values'}, received {_shown(value)}"
        )
    return value


def fields(value: object) -> dict[str, Any]:
    """Return the fields of an object. Raises ValueError."""
    if type(value) is not dict:
        raise ValueError(f"expected an object, received {_shown(value)}")
    return value


def field(body: object, name: str) -> Any:
    """Return a field of an object. Raises ValueError if there is none."""
    found = fields(body)
    if name not in found:
        raise ValueError(f"there is no {name!r}")
    return found[name]


def record(of: type[_Record], body: object, **read: object) -> _Record:
    """Return a dataclass of plain values from an object with its fields; those of `read` have been read already.

    Raises ValueError, also for a field that it does not know: another version wrote that one.
    """
    kinds = get_type_hints(of)
    given = {name: value for name, value in fields(body).items() if name not in read}
    if unknown := given.keys() - kinds.keys():
        raise ValueError(f"{min(unknown)!r} is unknown")
    try:
        return of(**{name: _plain(kinds[name], value) for name, value in given.items()}, **read)
    except TypeError as error:  # a field without a default is not there
        raise ValueError(str(error)) from None


def _plain(kind: Any, value: object) -> object:
    """Read a value of an annotated type; figures of a diverged job need not be finite."""
    if value is None and kind in _OPTIONAL:
        return None
    return _PLAIN[_OPTIONAL.get(kind, kind)](value)


_PLAIN: dict[Any, Callable[[object], object]] = {
    bool: flag,
    int: integer,
    float: lambda value: number(value, finite=False),
    str: text,
}
_OPTIONAL = {kind | None: kind for kind in _PLAIN}


def _shown(value: object) -> str:
    # A container may be as deep as memory is.
    return type(value).__name__ if isinstance(value, (dict, list)) else ascii(value)[:40]
