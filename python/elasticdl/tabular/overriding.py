"""What a person says about columns, as features: the functions of COLUMN. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elasticdl.errors import BadSetting
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.becoming import (
    BLURRED,
    LONGEST,
    Became,
    becomes,
    bounds_of,
    buckets,
    hashed,
    input_name,
    instead_of_blurred,
    integers,
    listed,
    looked_up,
    missing,
    plain_input,
    power_of_two,
    standardised,
    strictly_rising,
    vocabulary,
    width_of,
    words_of,
)
from elasticdl.tabular.columns import Call, ColumnList, Function, Name, Star, Value, names
from elasticdl.tabular.columns import Column as Item
from elasticdl.tabular.features import IdFeature, IdSource, Input, NumberFeature, Reason, Transform
from elasticdl.tabular.kinds import Kind, kind_of
from elasticdl.tabular.statistics import Column, Statistics

if TYPE_CHECKING:
    import pyarrow as pa

COMBINERS = ("mean", "sum", "sqrtn")
_PARTS = {
    "wide": "wide",
    "linear": "wide",
    "linear_feature_columns": "wide",
    "deep": "deep",
    "dnn": "deep",
    "dnn_feature_columns": "deep",
    "feature_columns": "",
}
_MOST_BUCKETS = 256
_MOST_IDS = 1 << 31


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        became: the features.
        own: columns that are in it, so that nothing is derived for them.
        rest: whether all other columns are derived.
    """

    became: tuple[Became, ...]
    own: frozenset[str]
    rest: bool

    def derives(self, column: str) -> bool:
        """Tell whether a column is derived as if nothing had been asked for."""
        return self.rest and column not in self.own


def asked_for(columns: Sequence[ColumnList], schema: pa.Schema, statistics: Statistics, label: str) -> Asked:
    """Return what COLUMN lists ask for. Raises BadSetting that names the item."""
    table = _Table(schema, statistics, label)
    own = frozenset(
        name.name
        for one in columns
        for item in one.items
        if not isinstance(item, Name) or one.input is not None
        for name in names(item)
    )
    became = []
    for one in columns:
        part = _part(one)
        for item in one.items:
            if isinstance(item, Name):
                table.field(item, item)
            if isinstance(item, Star) or (isinstance(item, Name) and one.input is None):
                continue
            found = table.derived(item) if isinstance(item, Name) else table.call(item, item)
            became.append(_for_part(found, part))
        if part is not None and any(isinstance(item, Star) for item in one.items):
            became += [_for_part(table.derived(Name(name)), part) for name in table.others(own)]
    return Asked(tuple(became), own, not any(one.input is not None for one in columns))


def _part(columns: ColumnList) -> str | None:
    """Return the part of the model that a list is for; None without FOR."""
    if columns.input is None:
        return None
    part = _PARTS.get(columns.input.lower())
    if part is None:
        raise BadSetting(f"FOR {columns.input}: there is no such input; our models have wide and deep")
    return part


def _for_part(became: Became, part: str | None) -> Became:
    if not part:
        return became
    return replace(
        became,
        numbers=tuple(replace(one, part=part) for one in became.numbers),
        ids=tuple(replace(one, part=part, name=f"{one.name} ({part})") for one in became.ids),
    )


class _Table:
    """The columns that items may name."""

    def __init__(self, schema: pa.Schema, statistics: Statistics, label: str) -> None:
        self._schema = schema
        self._statistics = statistics
        self._label = label

    def others(self, own: frozenset[str]) -> list[str]:
        return [name for name in self._schema.names if name != self._label and name not in own]

    def field(self, name: Name, item: Item) -> tuple[Kind, Kind | None, Column]:
        """Return kind, kind of elements, and statistics of a column. Raises BadSetting."""
        if name.name == self._label:
            raise _refused(item, f"{name} is the label")
        known = self.others(frozenset())
        if name.name not in known:
            hint = nearest(name.name, known) or f"; it gives {', '.join(known[:20])}"
            raise _refused(item, f"the SELECT gives no column {name.name!r}{hint}", name)
        kind = kind_of(self._schema.field(name.name).type)
        if kind is None or name.name not in self._statistics.columns:
            raise _refused(
                item, f"{name} is {self._schema.field(name.name).type}, of which no model can be made", name
            )
        inner = kind_of(self._schema.field(name.name).type.value_type) if kind is Kind.LIST else None
        return kind, inner, self._statistics.columns[name.name]

    def derived(self, name: Name) -> Became:
        kind, inner, column = self.field(name, name)
        return becomes(name.name, kind, inner, column)

    def call(self, item: Item, whole: Item) -> Became:
        """Return what a function of columns makes."""
        assert isinstance(item, Call), "names and stars are dealt with before"
        made = {
            Function.STANDARDIZE: self._scaled,
            Function.NORMALIZE: self._scaled,
            Function.LOG: self._scaled,
            Function.DENSE: self._dense,
        }.get(item.function)
        if made is not None:
            return made(item)
        ids, inputs = self._ids(item)
        what = f"{', '.join(f'{one.size:,} ids' for one in ids)}" + (
            "" if ids[0].is_indicator else ", embedded"
        )
        return Became(Reason(str(whole), what, "asked for"), inputs, ids=ids)

    # ------------------------------------------------------------------ numbers

    def _number(self, item: Call) -> tuple[str, Column]:
        (inner,) = item.columns
        if not isinstance(inner, Name):
            raise _refused(item, f"{item.function} takes a column; got {inner}")
        kind, _, column = self.field(inner, item)
        if kind in (Kind.TEXT, Kind.LIST) or column.numbers is None:
            raise _refused(item, f"{item.function} takes numbers, and {inner} is {kind}", inner)
        return inner.name, column

    def _scaled(self, item: Call) -> Became:
        transform, inner = Transform.NONE, item
        (first,) = item.columns
        if isinstance(first, Call) and first.function is Function.LOG and item.function is not Function.LOG:
            transform, inner = Transform.LOG, first
        name, column = self._number(inner)
        numbers = column.numbers
        assert numbers is not None, "a column of numbers"
        moments = numbers.logs if transform is Transform.LOG else numbers.moments
        match item.function:
            case Function.STANDARDIZE:
                feature = standardised(name, moments, transform)
                what = f"(x - {moments.mean:.6g}) / {moments.deviation:.6g}"
            case Function.NORMALIZE:
                low, high = _transformed(numbers.low, transform), _transformed(numbers.high, transform)
                scale = high - low or 1.0
                feature = NumberFeature(name, transform, low, scale, (moments.mean - low) / scale)
                what = f"(x - {low:.6g}) / {scale:.6g}"
            case _:
                feature = NumberFeature(name, Transform.LOG, fill=numbers.logs.mean)
                what = "ln(1 + x)"
        return Became(
            Reason(str(item), what, "asked for"), (plain_input(name),), (feature, *missing(name, column))
        )

    def _dense(self, item: Call) -> Became:
        (inner,) = item.columns
        if not isinstance(inner, Name):
            raise _refused(item, f"DENSE takes a column; got {inner}")
        kind, of, column = self.field(inner, item)
        name = inner.name
        reason = Reason(str(item), "as it is", "asked for")
        if kind not in (Kind.TEXT, Kind.LIST):
            if item.values and item.values[0] != 1:
                raise _refused(item, f"{inner} is one number; got {item.values[0]!r} for how many it is")
            assert column.numbers is not None, "a column of numbers"
            feature = NumberFeature(name, fill=column.numbers.moments.mean)
            return Became(reason, (plain_input(name),), (feature,))
        if of is Kind.TEXT:
            raise _refused(item, f"{inner} has lists of text; DENSE takes numbers")
        if (
            not item.values
            and kind is Kind.LIST
            and column.lengths is not None
            and column.lengths[0] == column.lengths[1]
        ):
            length = column.lengths[1]
        elif not item.values:
            raise _refused(item, f"say how many numbers {inner} has: DENSE({inner}, n)")
        else:
            length = _count(item, item.values[0], "n", 1 << 20)
        given = Input(name, input_name(name), False, length, _separator(item, kind))
        return Became(reason, (given,), (NumberFeature(name),))

    # ------------------------------------------------------------------ categories

    def _ids(self, item: Item) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        """Return categories and the inputs that they are made of."""
        if isinstance(item, Name):
            return self._ids_of_column(item)
        if not isinstance(item, Call):
            raise _refused(item, "* has no place in a function")
        match item.function:
            case Function.BUCKET:
                return self._buckets(item)
            case Function.CATEGORIZE | Function.HASH_BUCKET:
                return self._categories(item)
            case Function.SPARSE:
                return self._sparse(item)
            case Function.TEXT:
                return self._text(item)
            case Function.CROSS:
                return self._cross(item)
            case Function.CONCAT:
                found = [self._ids(one) for one in item.columns]
                return tuple(one for ids, _ in found for one in ids), tuple(
                    one for _, given in found for one in given
                )
            case Function.EMBEDDING | Function.INDICATOR:
                ids, inputs = self._ids(item.columns[0])
                if item.function is Function.INDICATOR:
                    return tuple(replace(one, is_indicator=True) for one in ids), inputs
                width = _count(item, item.values[0], "width", 4096)
                combiner = item.values[1] if len(item.values) > 1 else "mean"
                if combiner not in COMBINERS:
                    raise _refused(item, f"the combiner is one of {', '.join(COMBINERS)}; got {combiner!r}")
                return tuple(replace(one, width=width, combiner=str(combiner)) for one in ids), inputs
            case _:
                raise _refused(item, f"{item.function} makes numbers, where categories are needed")

    def _ids_of_column(self, name: Name) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        kind, inner, column = self.field(name, name)
        if kind is Kind.TEXT:
            assert column.values is not None, "texts"
            return (
                (looked_up(name.name, IdSource.TEXTS, vocabulary(column.values, 1)),),
                (plain_input(name.name, is_text=True),),
            )
        if kind is Kind.LIST:
            assert inner is not None, "lists have elements"
            length = max(1, min(LONGEST, (column.lengths or (0, 0))[1]))
            found = None if column.elements is None else listed(name.name, inner, column.elements, length)
            if found is None:
                raise _refused(name, f"the lists of {name} have no value that is there twice")
            return (found,), (Input(name.name, input_name(name.name), inner is Kind.TEXT, length),)
        if kind is Kind.INTEGER and column.is_blurred:
            raise _blurred(name, name)
        if column.values is not None and kind in (Kind.INTEGER, Kind.BOOLEAN):
            return (looked_up(name.name, IdSource.INTEGERS, integers(column.values)),), (
                plain_input(name.name),
            )
        raise _refused(
            name,
            f"{name} has too many numbers to be a category; use BUCKET({name}, n) or HASH_BUCKET({name}, n)",
        )

    def _buckets(self, item: Call) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        name, column = self._number(item)
        given = item.values[0]
        if isinstance(given, tuple):
            if not given or not all(type(one) in (int, float) for one in given):
                raise _refused(item, "bounds are a list of numbers")
            bounds = tuple(float(one) for one in given if isinstance(one, int | float))
            if not strictly_rising(bounds):
                raise _refused(item, "bounds rise from each to the next")
        else:
            bounds = bounds_of(column, _count(item, given, "n", _MOST_BUCKETS, least=2))
            if not bounds:
                raise _refused(
                    item, f"{name} has the same value in nearly all rows, of which no buckets can be made"
                )
        return (buckets(name, bounds),), (plain_input(name),)

    def _categories(self, item: Call) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        (inner,) = item.columns
        if isinstance(inner, Call):
            raise _refused(item, f"{item.function} takes a column; got {inner}")
        if not isinstance(inner, Name):
            raise _refused(item, "* has no place in a function")
        kind, _, column = self.field(inner, item)
        least = 2 if item.function is Function.HASH_BUCKET else 1  # one is that of missing values
        size = _count(item, item.values[0], "n", _MOST_IDS, least) if item.values else None
        name = inner.name
        if kind is Kind.LIST:
            ids, inputs = self._ids_of_column(inner)
            if item.function is Function.HASH_BUCKET:
                ids = (hashed(name, size or ids[0].size, ids[0].length),)
            return ids, inputs
        values = column.values
        given = (plain_input(name, is_text=kind is Kind.TEXT),)
        if item.function is Function.HASH_BUCKET:
            distinct = values.distinct if values is not None else column.rows
            return (hashed(name, size or power_of_two(distinct + 1)),), given
        if kind is Kind.NUMBER or values is None:
            raise _refused(
                item,
                f"{inner} has too many numbers; use HASH_BUCKET({inner}, n) or BUCKET({inner}, n)",
                inner,
            )
        if kind is Kind.INTEGER and column.is_blurred:
            raise _blurred(item, inner)
        kept = replace(values, counts=values.counts[:size]) if size else values
        if kind is Kind.TEXT:
            return (looked_up(name, IdSource.TEXTS, vocabulary(kept, 1)),), given
        return (looked_up(name, IdSource.INTEGERS, integers(kept)),), given

    def _sparse(self, item: Call) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        (inner,) = item.columns
        if not isinstance(inner, Name):
            raise _refused(item, f"SPARSE takes a column; got {inner}")
        kind, of, column = self.field(inner, item)
        size = _count(item, item.values[0], "n", _MOST_IDS) + 1
        if kind not in (Kind.TEXT, Kind.LIST) or of in (Kind.TEXT, Kind.NUMBER):
            raise _refused(
                item, f"SPARSE takes lists of whole numbers, or texts of them; {inner} is {kind}", inner
            )
        length = LONGEST if kind is Kind.TEXT else max(1, min(LONGEST, (column.lengths or (0, 0))[1]))
        feature = IdFeature(
            inner.name,
            (inner.name,),
            IdSource.NUMBERS,
            size,
            width_of(size),
            length=length,
            is_indicator=size <= 1024,
        )
        return (feature,), (Input(inner.name, input_name(inner.name), False, length, _separator(item, kind)),)

    def _text(self, item: Call) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        (inner,) = item.columns
        if not isinstance(inner, Name):
            raise _refused(item, f"TEXT takes a column; got {inner}")
        kind, _, column = self.field(inner, item)
        if kind is not Kind.TEXT:
            raise _refused(item, f"TEXT takes text, and {inner} is {kind}", inner)
        found = words_of(inner.name, column, asked=True)
        if found is None:
            raise _refused(
                item, f"{inner} has one or two words a row; leave TEXT out, and it is a category", inner
            )
        return (found,), (plain_input(inner.name, is_text=True),)

    def _cross(self, item: Call) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        if len(item.columns) < 2:
            raise _refused(item, "CROSS takes two columns or more")
        size = _count(item, item.values[0], "n", _MOST_IDS)
        crossed: list[IdFeature] = []
        inputs: list[Input] = []
        for one in item.columns:
            ids, given = self._to_be_crossed(one)
            if any(found.length for found in ids):
                raise _refused(item, f"{one} has several values a row, which CROSS can't take")
            crossed += ids
            inputs += given
        name = " x ".join(one.name for one in crossed)
        columns = tuple(dict.fromkeys(column for one in crossed for column in one.columns))
        return (
            IdFeature(name, columns, IdSource.CROSS, size, width_of(size), crossed=tuple(crossed)),
        ), tuple(inputs)

    def _to_be_crossed(self, item: Item) -> tuple[tuple[IdFeature, ...], tuple[Input, ...]]:
        if isinstance(item, Name):
            kind, _, column = self.field(item, item)
            if kind in (Kind.NUMBER, Kind.DATE, Kind.TIMESTAMP) or (
                kind is Kind.INTEGER and column.values is None
            ):
                raise _refused(item, f"CROSS takes categories; use BUCKET({item}, n) in it", item)
        return self._ids(item)


def _transformed(value: float, transform: Transform) -> float:
    import math

    return math.log1p(max(0.0, value)) if transform is Transform.LOG else value


def _separator(item: Call, kind: Kind) -> str:
    if kind is not Kind.TEXT:
        return ""
    separator = item.values[1] if len(item.values) > 1 else ","
    if not isinstance(separator, str) or not separator:
        raise _refused(item, f"the separator is a text; got {separator!r}")
    return separator


def _count(item: Item, value: Value, name: str, most: int, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _refused(item, f"{name} is a number from {least} to {most:,}; got {value!r}")
    return value


class BadColumn(BadSetting):
    """What COLUMN says is wrong.

    Attributes:
        column: the item, which knows its place in the text.
    """

    def __init__(self, message: str, column: Item) -> None:
        super().__init__(message)
        self.column = column


def _blurred(item: Item, column: Name) -> BadColumn:
    why = f"{column} has {BLURRED}; use HASH_BUCKET({column}, n), or {instead_of_blurred(column.name)}"
    return _refused(item, why, column)


def _refused(item: Item, why: str, place: Item | None = None) -> BadColumn:
    return BadColumn(f"COLUMN {item}: {why}", place or item)
