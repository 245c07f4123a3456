"""The kinds of columns, by their types in Arrow, and what to select in place of a type of which no model can be made."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

from elasticdl.spec.databases import quoted


class Kind(StrEnum):
    """What a column has."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    LIST = "list"


def kind_of(kind: pa.DataType) -> Kind | None:
    """Return the kind of a type; None if no model can take it."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if types.is_boolean(kind):
        return Kind.BOOLEAN
    if types.is_integer(kind):
        return Kind.INTEGER
    if types.is_floating(kind) or types.is_decimal(kind) or types.is_time(kind):
        return Kind.NUMBER
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Kind.TEXT
    if types.is_date(kind):
        return Kind.DATE
    if types.is_timestamp(kind):
        return Kind.TIMESTAMP
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inside = kind_of(kind.value_type)
        return Kind.LIST if inside in (Kind.BOOLEAN, Kind.INTEGER, Kind.NUMBER, Kind.TEXT) else None
    return None


def instead(name: str, kind: pa.DataType) -> str:
    """Say what to select in place of a column whose kind no model can take."""
    written = quoted(name)
    types = pa.types
    if types.is_struct(kind):
        return f"select its fields: {written}.field AS name"
    if types.is_map(kind):
        return f"select the values of single keys: {written}['key'] AS name"
    if types.is_duration(kind) or types.is_interval(kind):
        return f"select its length in seconds: extract(epoch FROM {written}) AS name"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "select lists of numbers or of text"
    return f"leave it out, or select it as numbers or text: CAST({written} AS VARCHAR)"


def instead_of_label(name: str, kind: pa.DataType) -> str:
    """Say what to select in place of a label that is no text, boolean or number; it can't be left out."""
    written = quoted(name)
    match kind_of(kind):
        case Kind.DATE | Kind.TIMESTAMP:
            return f"select a number of it: extract(epoch FROM {written}) AS name"
        case Kind.LIST:
            return "select one of its elements, or one text of all"
    found = instead(name, kind)
    return found.removeprefix("leave it out, or ")
