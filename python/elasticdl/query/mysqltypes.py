"""Columns of MySQL and MariaDB: what type a column has, by what the server says of it, and its values as Arrow has them.

The server names a type, a length and flags before the first row: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_column_definition.html
PyMySQL keeps the flags to itself, so its private field is read here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
from pymysql.constants import FIELD_TYPE, FLAG

from elasticdl.errors import BadData

_BINARY = 63
"""The character set of what is no text."""
_MOST_DIGITS = 38
"""Of a decimal in Arrow; MySQL's have up to 65."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Field:
    """A column of an answer.

    Attributes:
        name: as the SELECT calls it.
        code: of its type.
        length: of its longest value, in characters of digits or bytes of text.
        scale: digits after the point.
        unsigned: no value is below 0.
        binary: its values are bytes.
    """

    name: str
    code: int
    length: int = 0
    scale: int = 0
    unsigned: bool = False
    binary: bool = False


def fields_of(cursor: Any) -> list[Field]:
    """Return the columns of the answer that a cursor of PyMySQL has."""
    return [
        Field(
            one.name,
            one.type_code,
            one.length,
            one.scale,
            bool(one.flags & FLAG.UNSIGNED),
            one.charsetnr == _BINARY,
        )
        for one in cursor._result.fields
    ]


def schema_of(fields: Sequence[Field]) -> pa.Schema:
    """Return names and types of columns."""
    return pa.schema([(one.name, type_of(one)) for one in fields])


def batch_of(fields: Sequence[Field], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a batch. Raises BadData for times that are none of a day."""
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [_array(one, values) for one, values in zip(fields, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[one.name for one in fields])


_INTEGERS = {
    FIELD_TYPE.TINY: (pa.int8(), pa.uint8()),
    FIELD_TYPE.SHORT: (pa.int16(), pa.uint16()),
    FIELD_TYPE.YEAR: (pa.int16(), pa.int16()),
    FIELD_TYPE.INT24: (pa.int32(), pa.uint32()),
    FIELD_TYPE.LONG: (pa.int32(), pa.uint32()),
    FIELD_TYPE.LONGLONG: (pa.int64(), pa.uint64()),
}
_OTHERS = {
    FIELD_TYPE.FLOAT: pa.float32(),
    FIELD_TYPE.DOUBLE: pa.float64(),
    FIELD_TYPE.DATE: pa.date32(),
    FIELD_TYPE.NEWDATE: pa.date32(),
    FIELD_TYPE.DATETIME: pa.timestamp("us"),
    FIELD_TYPE.TIMESTAMP: pa.timestamp("us"),
    FIELD_TYPE.TIME: pa.time64("us"),
    FIELD_TYPE.JSON: pa.string(),
    FIELD_TYPE.GEOMETRY: pa.binary(),
    FIELD_TYPE.NULL: pa.null(),
}
_DECIMALS = (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL)


def type_of(field: Field) -> pa.DataType:
    """Return the type of a column: TINYINT(1) is BOOLEAN in MySQL, and one bit is a boolean as well."""
    if field.code in (FIELD_TYPE.TINY, FIELD_TYPE.BIT) and field.length == 1:
        return pa.bool_()
    if field.code == FIELD_TYPE.BIT:
        return pa.uint64()
    if field.code in _INTEGERS:
        return _INTEGERS[field.code][field.unsigned]
    if field.code in _DECIMALS:
        digits = field.length - (field.scale > 0) - (not field.unsigned)
        fits = 0 < digits <= _MOST_DIGITS and field.scale <= digits
        return pa.decimal128(digits, field.scale) if fits else pa.float64()
    found = _OTHERS.get(field.code)
    if found is not None:
        return found
    return pa.binary() if field.binary else pa.string()


def _array(field: Field, values: Sequence[Any]) -> pa.Array:
    kind = type_of(field)
    convert = _CONVERTED.get(field.code)
    if convert is not None:
        values = [None if one is None else convert(field, one) for one in values]
    if pa.types.is_boolean(kind):
        if not {0, 1, None}.issuperset(values):  # a TINYINT(1) may have any number of a byte
            return pa.array(values, _INTEGERS[FIELD_TYPE.TINY][field.unsigned])
        values = [None if one is None else bool(one) for one in values]
    elif pa.types.is_floating(kind):
        values = [None if one is None else float(one) for one in values]
    return pa.array(values, kind)


def _of_type(kind: type) -> Callable[[Field, Any], Any]:
    """Return a function for dates: PyMySQL leaves those that there are not, such as 0000-00-00, as text; here they are nulls."""
    return lambda field, value: value if isinstance(value, kind) else None


def _time(field: Field, value: timedelta) -> time:
    if not timedelta() <= value < _DAY:
        raise BadData(
            f"the column {field.name!r} has {value}, which is no time of a day; SELECT its seconds: TIME_TO_SEC(`{field.name}`)"
        )
    return (datetime.min + value).time()


_CONVERTED: dict[int, Callable[[Field, Any], Any]] = {
    FIELD_TYPE.BIT: lambda field, value: int.from_bytes(value, "big"),
    FIELD_TYPE.DATE: _of_type(date),
    FIELD_TYPE.NEWDATE: _of_type(date),
    FIELD_TYPE.DATETIME: _of_type(datetime),
    FIELD_TYPE.TIMESTAMP: _of_type(datetime),
    FIELD_TYPE.TIME: _time,
}
