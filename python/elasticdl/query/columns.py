"""Types of columns: of the values that a driver returns, one type for all parts of a column, and what of it the files of a model have.

It opens nothing. Integers widen to floats, and what has no other type in common becomes text, as DuckDB writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from elasticdl.data.writers.duckdbtypes import TYPES
from elasticdl.errors import BadData
from elasticdl.spec.databases import quoted

_MOST_DIGITS = 38
"""Of a decimal."""


# ------------------------------------------------------------------ values of a driver


def array_of(name: str, values: Sequence[Any]) -> pa.Array:
    """Return values as a column: integers and floats are floats, numbers and texts are texts, all else has one type.

    Raises BadData for values that have no type in common.
    """
    kinds = {*map(type, values)} - {type(None)}
    if str in kinds and len(kinds) > 1 and kinds <= {str, int, float}:
        return _as_texts(values)
    if kinds == {int, float}:
        return pa.array([None if one is None else float(one) for one in values], pa.float64())
    try:
        return pa.array(values)
    except pa.ArrowException as error:
        raise _nothing_common(name, sorted(kind.__name__ for kind in kinds)) from error


def _as_texts(values: Sequence[Any]) -> pa.Array:
    import duckdb

    floats = pa.table({"value": pa.array([one if type(one) is float else None for one in values])})
    with duckdb.connect() as database:
        database.register("floats", floats)
        written = database.execute("SELECT CAST(value AS VARCHAR) FROM floats").fetchall()
    return pa.array(
        [
            text if type(one) is float else None if one is None else str(one)
            for one, (text,) in zip(values, written, strict=True)
        ],
        pa.string(),
    )


def _nothing_common(name: str, kinds: Sequence[str]) -> BadData:
    return BadData(
        f"the column {name!r} has values of the types {' and '.join(kinds)}, which have none in common; choose one in the SELECT: "
        f"CAST({quoted(name)} AS …) AS {quoted(name)}"
    )


# ------------------------------------------------------------------ parts of a column


def unified(name: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type that takes the values of all parts of a column. Raises BadData if there is none."""
    plain = [pa.string() if _is_text(kind) else kind for kind in kinds]
    found = reduce(lambda one, other: _wider(one, other) if one is not None else None, plain)
    if found is None:
        raise _nothing_common(name, sorted({str(kind) for kind in kinds}))
    return found


def takes(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Tell whether a part of one type may have values of another without a trace: nulls, and integers in floats."""
    return bool(
        wide.equals(narrow)
        or pa.types.is_null(narrow)
        or (pa.types.is_floating(wide) and pa.types.is_integer(narrow))
    )


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return _wider_number(one, other)
    if pa.types.is_temporal(one) and pa.types.is_temporal(other):
        return pa.timestamp("us")
    if all(_is_text(kind) or _is_number(kind) or pa.types.is_temporal(kind) for kind in (one, other)):
        return pa.string()
    return None


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else pa.float64()
    if any(pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in (one, other)):
        return pa.float64()
    return pa.int64()


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_dictionary(kind)
    )


# ------------------------------------------------------------------ SQL of DuckDB

_NAMES = {**TYPES, pa.null(): "VARCHAR", pa.timestamp("us"): "TIMESTAMP"}


def selected(name: str, part: pa.DataType, kind: pa.DataType) -> str:
    """Return the expression for a column with the type of all its parts."""
    if part.equals(kind) and not pa.types.is_null(kind):
        return quoted(name)
    return f"CAST({quoted(name)} AS {_sql_of(kind)}) AS {quoted(name)}"


def _sql_of(kind: pa.DataType) -> str:
    return f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else _NAMES[kind]


def for_model(
    name: str, kind: pa.DataType, has_nulls: bool, has_inner_nulls: bool = False, *, is_number: bool = False
) -> str | None:
    """Return the expression for a column as the reader of tables takes it, None if it takes none of this type.

    That one has no null integers, so those are floats; dates and times are seconds, since 1970 or midnight. Of a column of nulls only the
    training has said what it is: `is_number`, or a text.
    """
    column = quoted(name)
    if pa.types.is_null(kind):
        return f"CAST({column} AS {'DOUBLE' if is_number else 'VARCHAR'}) AS {column}"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return f"CAST(epoch({column}) AS DOUBLE) AS {column}"
    if pa.types.is_decimal(kind):
        return f"CAST({column} AS DOUBLE) AS {column}"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return f"CAST({column} AS DOUBLE) AS {column}" if has_nulls else column
    if pa.types.is_floating(kind):
        return column
    if _is_text(kind):
        return f"CAST({column} AS VARCHAR) AS {column}"
    if not is_list(kind):
        return None
    value = kind.value_type
    if _is_text(value):
        inner = "VARCHAR[]"
    elif pa.types.is_floating(value):
        inner = f"{_NAMES.get(value, 'FLOAT')}[]"
    elif pa.types.is_integer(value) or pa.types.is_boolean(value):
        inner = "DOUBLE[]" if has_inner_nulls else f"{_NAMES[value]}[]"
    elif pa.types.is_decimal(value):
        inner = "DOUBLE[]"
    else:
        return None
    return f"coalesce(CAST({column} AS {inner}), []) AS {column}"


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values are lists, of one length or of any."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
    )
