"""Rows as the steps of SQLFlow print them: lines of its protocol's messages as text, which its server makes a table of.

Format: `proto/sqlflow.proto` of SQLFlow, in protobuf's text format: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_WRAPPERS: dict[type, str] = {bool: "BoolValue", int: "Int64Value", float: "DoubleValue"}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def lines(table: pa.Table) -> Iterator[str]:
    """Yield the lines of a table: its names, then each row."""
    yield f"head {{ {' '.join(f'column_names: {_text(name)}' for name in table.column_names)} }}"
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield f"row {{ {' '.join(f'data {{ {_any(value)} }}' for value in row)} }}"


def _any(value: object) -> str:
    if value is None:
        return "[type.googleapis.com/proto.Row.Null] { }"
    wrapper = _WRAPPERS.get(type(value))
    if wrapper is None:
        return f"[type.googleapis.com/google.protobuf.StringValue] {{ value: {_text(str(value))} }}"
    return f"[type.googleapis.com/google.protobuf.{wrapper}] {{ value: {str(value).lower()} }}"


def _text(value: str) -> str:
    return f'"{value.translate(_ESCAPES)}"'
