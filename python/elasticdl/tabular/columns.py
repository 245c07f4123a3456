"""What a person says about columns in COLUMN: names, `*`, and functions of columns.

Plain values; the text they come from is read in `query/grammar.py`, what they do to a model is decided in `tabular/plan.py`. Each value
knows its place in the text, for messages, and is equal to the same value elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Function(StrEnum):
    """A function of COLUMN, by its first name; `SYNONYMS` has the others."""

    STANDARDIZE = "STANDARDIZE"
    NORMALIZE = "NORMALIZE"
    LOG = "LOG"
    BUCKET = "BUCKET"
    CATEGORIZE = "CATEGORIZE"
    HASH_BUCKET = "HASH_BUCKET"
    EMBEDDING = "EMBEDDING"
    INDICATOR = "INDICATOR"
    CROSS = "CROSS"
    CONCAT = "CONCAT"
    DENSE = "DENSE"
    SPARSE = "SPARSE"
    TEXT = "TEXT"


SYNONYMS = {
    "BUCKETIZE": Function.BUCKET,
    "CATEGORY_ID": Function.CATEGORIZE,
    "VOCABULARIZE": Function.CATEGORIZE,
    "CATEGORY_HASH": Function.HASH_BUCKET,
    "HASH": Function.HASH_BUCKET,
    "NUMERIC": Function.DENSE,
}
"""Names of SQLFlow and of the earlier generation."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes: columns first, then values.

    Attributes:
        usage: how it is written, for messages.
        most: how many columns it takes at most; the least is one, of CROSS two.
        values: names of its values, in order.
        required: how many of the values must be given.
    """

    usage: str
    most: int = 1
    values: tuple[str, ...] = ()
    required: int = 0


_MANY = 1_000

SIGNATURES = {
    Function.STANDARDIZE: Signature("STANDARDIZE(x)"),
    Function.NORMALIZE: Signature("NORMALIZE(x)"),
    Function.LOG: Signature("LOG(x)"),
    Function.BUCKET: Signature("BUCKET(x, n) or BUCKET(x, [b, ...])", 1, ("buckets",), 1),
    Function.CATEGORIZE: Signature("CATEGORIZE(x[, n])", 1, ("size",)),
    Function.HASH_BUCKET: Signature("HASH_BUCKET(x[, n])", 1, ("size",)),
    Function.EMBEDDING: Signature("EMBEDDING(x, width[, combiner])", 1, ("width", "combiner"), 1),
    Function.INDICATOR: Signature("INDICATOR(x)"),
    Function.CROSS: Signature("CROSS([a, b, ...], n)", _MANY, ("size",), 1),
    Function.CONCAT: Signature("CONCAT(a, b, ...)", _MANY),
    Function.DENSE: Signature("DENSE(x[, n[, separator]])", 1, ("size", "separator")),
    Function.SPARSE: Signature("SPARSE(x, n[, separator])", 1, ("size", "separator"), 1),
    Function.TEXT: Signature("TEXT(x)"),
}
"""Every function. `buckets` is a number or a list of bounds, `combiner` is mean, sum or sqrtn, `separator` is text; others are numbers."""

Value = None | bool | int | float | str | tuple["Value", ...]
"""A value of WITH, or of a function. A bare name (`adam`) is text; a list is a tuple."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column of the SELECT.

    Attributes:
        name: as the SELECT's result calls it.
        at: its place in the script, in characters.
    """

    name: str
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Star:
    """`*`: all columns of the SELECT but the label, each derived as if no COLUMN were given.

    Attributes:
        at: its place in the script, in characters.
    """

    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of columns.

    Attributes:
        function: which.
        columns: what it is applied to; functions nest: `EMBEDDING(HASH_BUCKET(city, 1000), 8)`.
        values: what else it was given, as many as written, in the order of `SIGNATURES[function].values`.
        at: its place in the script, in characters.
    """

    function: Function
    columns: tuple[Column, ...]
    values: tuple[Value, ...] = ()
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.function}({', '.join([*map(str, self.columns), *map(_text, self.values)])})"


Column = Name | Star | Call
"""One item of a COLUMN list."""


@dataclass(frozen=True, slots=True)
class ColumnList:
    """One `COLUMN …`.

    Attributes:
        items: as written.
        input: the FOR name: the model's input that it is for; None if there is none. With it, only what is listed is used.
    """

    items: tuple[Column, ...]
    input: str | None = None


def names(column: Column) -> tuple[Name, ...]:
    """Return the SELECT's columns that an item is made of, in order."""
    match column:
        case Name():
            return (column,)
        case Star():
            return ()
        case Call():
            return tuple(name for inner in column.columns for name in names(inner))


def _text(value: Value) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, tuple) else repr(value)
