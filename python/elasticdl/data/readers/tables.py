"""Tables as records: what becomes of Arrow's columns in `feed`, by their types.

It opens no file. Types of Arrow that a model can't take as they are become ones that it can (dates are numbers, decimals are floats,
dictionaries are their values); a type that has no such form is refused before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.readers.reader import Metadata
from elasticdl.data.readers.records import Columns, Records
from elasticdl.errors import BadData, BadSetting
from elasticdl.spec.nearest import nearest


def corrupt(path: str, record: int, what: str) -> str:
    """Say what is wrong with a record."""
    return f"record {record} of {path} (counted from 0) is corrupt: {what}"


class Rows(StrEnum):
    """What `feed` gets of a table."""

    COLUMNS = "columns"
    STRINGS = "strings"


@dataclass(frozen=True, slots=True)
class TableParams:
    """Parameters of the readers of tables.

    Attributes:
        rows: the form of a record.
        columns: the columns that are read, in this order; none: all.
    """

    rows: Rows = Rows.COLUMNS
    columns: tuple[str, ...] = ()


def table_params(params: Mapping[str, Any]) -> TableParams:
    """Read `data_reader_params` of a table. Raises BadSetting."""
    known = ("rows", "columns")
    for name in params:
        if name not in known:
            raise BadSetting(
                f"--data_reader_params: a table has the parameters rows and columns; got {name}{nearest(name, known)}"
            )
    rows = params.get("rows", Rows.COLUMNS.value)
    if rows not in list(Rows):
        raise BadSetting(f"--data_reader_params: rows is columns or strings; got {rows!r}")
    columns = params.get("columns", ())
    if isinstance(columns, str):
        columns = (columns,)
    if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
        raise BadSetting(f"--data_reader_params: columns is a list of names; got {columns!r}")
    if len(set(columns)) < len(columns):
        raise BadSetting(f"--data_reader_params: columns names one twice; got {columns!r}")
    return TableParams(Rows(rows), tuple(columns))


class TableForm:
    """How rows of one schema become records.

    Attributes:
        schema: the columns that are read, as they are in the files.
        metadata: what `feed` learns about them.
    """

    def __init__(self, schema: pa.Schema, params: TableParams, path: str) -> None:
        """`path`: the file with this schema, for messages. Raises BadData, or BadSetting for columns that there are not."""
        self._rows = params.rows
        self.schema = _chosen(schema, params, path)
        self._plain: dict[str, pa.DataType] = {}
        for column in self.schema:
            becomes = _form_of(column.type, self._rows)
            if becomes is None:
                raise BadData(_refusal(schema, column, params, path))
            self._plain[column.name] = becomes
        dtypes = {name: _dtype(of) for name, of in self._plain.items()}
        self.metadata = Metadata(tuple(self._plain), dtypes)

    def decoded(self, table: pa.Table) -> Decoded:
        """Take a table of this schema. Raises pyarrow.ArrowException for values that do not fit."""
        columns = {name: _cast(table.column(name), of) for name, of in self._plain.items()}
        bad = {
            row: f"its column {name!r} {what}"
            for name, column in columns.items()
            for row, what in _wrong(column)
        }
        size = sum(column.get_total_buffer_size() for column in columns.values())
        return Decoded(self._rows, {name: _kept(column) for name, column in columns.items()}, bad, size)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows that were decoded together, from which records are picked.

    Attributes:
        rows: the form of a record.
        columns: the rows, in types of which records are made. Numbers, and vectors of one length, are arrays of NumPy: to pick a few of
            them takes a thirtieth of the time that it takes with Arrow. Texts and ragged vectors are Arrow's, which need the least room.
        bad: the rows that make none, because a value is missing for which nothing can stand, or is no text; and what is wrong with each.
        size: bytes of memory.
    """

    rows: Rows
    columns: Mapping[str, npt.NDArray[Any] | pa.Array]
    bad: Mapping[int, str]
    size: int

    def records(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return the records of these rows in the order asked, without bad ones."""
        if self.bad:
            rows = rows[[row not in self.bad for row in rows.tolist()]]
        if not len(rows):
            return []
        if self.rows is Rows.STRINGS:
            texts = [
                column.take(pa.array(rows)).fill_null("").to_pylist() for column in self.columns.values()
            ]
            return [list(row) for row in zip(*texts, strict=True)]
        return Columns(len(rows), {name: _picked(column, rows) for name, column in self.columns.items()})


def _kept(column: pa.Array) -> npt.NDArray[Any] | pa.Array:
    """Return a column in the form that records are picked from."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_primitive(kind.value_type):
        # Of a null there are values, too.
        values = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        return _numbers(values).reshape(len(column), kind.list_size)
    return _numbers(column) if pa.types.is_primitive(kind) else column


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers as they are; a null is not a number, or zero in a row that makes no record."""
    if column.null_count and not pa.types.is_floating(column.type):
        column = column.fill_null(pa.scalar(0, pa.int8()).cast(column.type))
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _picked(column: npt.NDArray[Any] | pa.Array, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return some rows of a column, none of which is bad."""
    return column[rows] if isinstance(column, np.ndarray) else _array(column.take(pa.array(rows)))


def _chosen(schema: pa.Schema, params: TableParams, path: str) -> pa.Schema:
    """Return the columns that are read."""
    names = schema.names
    if not names:
        raise BadData(f"{path} has no columns")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadData(f"{path} has two columns of the name {twice!r}")
    for name in params.columns:
        if name not in names:
            raise BadSetting(
                f"--data_reader_params: {path} has no column {name!r}{nearest(name, names)}; it has {', '.join(names)}"
            )
    return pa.schema([schema.field(name) for name in params.columns or names])


def _refusal(schema: pa.Schema, column: pa.Field, params: TableParams, path: str) -> str:
    """Say what to do about a column of a type that makes no record."""
    usable = [other.name for other in schema if _form_of(other.type, params.rows) is not None]
    what = f"the column {column.name!r} of {path} is {_shown(column.type)}, of which feed can't get {params.rows}"
    if not usable:
        return f"{what}; write it as numbers, text, or lists of them"
    return f'{what}; leave it out with --data_reader_params="columns={usable[:20]!r}", or write it as numbers, text, or lists of them'


def _form_of(kind: pa.DataType, rows: Rows) -> pa.DataType | None:
    """Return the type in which a column is kept for records; None if it makes none."""
    return _plain(kind) if rows is Rows.COLUMNS else _text(kind)


def _shown(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) < 80 else f"{text[:80]}…"


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a model gets for one of Arrow's; None if it can't get any."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        value = _scalar(kind.value_type)
        return None if value is None or kind.list_size < 1 else pa.list_(value, kind.list_size)
    if _is_ragged(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        value = _scalar(kind.value_type)
        return None if value is None else pa.large_list(value)
    return _scalar(kind)


def _scalar(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return pa.large_binary()
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int64()
    return None


def _text(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of text, if values of this type can be written as such."""
    plain = _plain(kind)
    if plain is None or pa.types.is_nested(plain) or pa.types.is_large_binary(plain):
        return None
    try:
        _cast(pa.chunked_array([], kind), pa.large_string())
    except pa.ArrowNotImplementedError:
        return None
    return pa.large_string()


def _is_ragged(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _dtype(kind: pa.DataType) -> str:
    """Return how a type is called in the metadata."""
    if pa.types.is_fixed_size_list(kind):
        return f"{_dtype(kind.value_type)}[{kind.list_size}]"
    if _is_ragged(kind):
        return f"{_dtype(kind.value_type)}[]"
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_large_binary(kind):
        return "binary"
    # by an array: some versions of pyarrow want pandas for the type alone
    name: str = pa.array([], kind).to_numpy(zero_copy_only=False).dtype.name
    return name


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column as one array of a type."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type.equals(kind) else array.cast(kind)


def _wrong(column: pa.Array) -> list[tuple[int, str]]:
    """Return the rows in which a value is missing for which nothing can stand, or is no UTF-8."""
    missing = _missing(column)
    if missing is not None:
        what = f"is null, for which {_dtype(column.type)} has no value"
        return [(row, what) for row in pc.indices_nonzero(missing).to_pylist()]
    value = column.type.value_type if pa.types.is_nested(column.type) else column.type
    if pa.types.is_large_string(value):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return [(row, "is not UTF-8") for row in range(len(column)) if not _is_text(column, row)]
    return []


def _missing(column: pa.Array) -> pa.Array | None:
    """Return which rows have a null that nothing can stand for; None if no row has."""
    kind = column.type
    if pa.types.is_nested(kind):
        missing = column.is_null() if column.null_count else None
        values = column.flatten()
        if values.null_count and not _has_empty(kind.value_type):
            parents = pc.unique(pc.list_parent_indices(column).filter(values.is_null()))
            inside = pc.is_in(pa.array(np.arange(len(column))), parents)
            missing = inside if missing is None else pc.or_(missing, inside)
        return missing
    return None if not column.null_count or _has_empty(kind) else column.is_null()


def _has_empty(kind: pa.DataType) -> bool:
    """Tell whether a null of this type has a value: not a number, or an empty text."""
    return bool(
        pa.types.is_floating(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    )


def _is_text(column: pa.Array, row: int) -> bool:
    try:
        column[row].as_py()
    except UnicodeDecodeError:
        return False
    return True


def _array(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column, in which no value is missing for which nothing can stand, as an array."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        return _array(column.flatten()).reshape(len(column), kind.list_size)
    if pa.types.is_large_list(kind):
        values = _array(column.flatten())
        ends = np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        vectors = np.empty(len(column), object)
        for row, vector in enumerate(np.split(values, ends[:-1])):
            vectors[row] = vector
        return vectors
    if column.null_count and not pa.types.is_primitive(kind):
        column = column.fill_null("" if pa.types.is_large_string(kind) else b"")
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array
