"""How rows are shown: as a table for people, in text or HTML, and as CSV or JSON for programs, which get all of them."""

from __future__ import annotations

import datetime
import decimal
import html as markup
import io
import json
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS = 40
"""That people are shown."""
_WIDEST = 60
"""Characters of a cell."""
FORMS = ("table", "csv", "json")


def text(rows: pa.Table, form: str) -> str:
    """Return rows in a form of FORMS, with a line break at the end."""
    match form:
        case "csv":
            return csv(rows)
        case "json":
            named = rows.rename_columns(_distinct(rows.column_names))
            return json.dumps(list(map(_plain, named.to_pylist())), ensure_ascii=False) + "\n"
    return table(rows) + "\n"


def table(rows: pa.Table) -> str:
    """Return the first rows side by side; numbers are at the right of their columns."""
    head, cells, more = _cells(rows)
    widths = [max(map(_width, column)) for column in zip(head, *cells, strict=True)]
    right = [_is_number(kind) for kind in rows.schema.types]
    lines = [_line(head, widths, right), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, right) for row in cells]
    if more:
        lines.append(f"… {more:,} more rows")
    return "\n".join(lines)


def html(rows: pa.Table) -> str:
    """Return the first rows as a table of HTML."""
    head, cells, more = _cells(rows)
    lines = ["<table>", _row("th", head), *(_row("td", row) for row in cells), "</table>"]
    if more:
        lines.append(f"<p>… {more:,} more rows</p>")
    return "\n".join(lines)


def csv(rows: pa.Table) -> str:
    """Return all rows as CSV (RFC 4180), lists as JSON; null is an empty cell."""
    import csv as module

    written = io.StringIO(newline="")
    writer = module.writer(written, lineterminator="\n")
    writer.writerow(rows.column_names)
    for batch in rows.to_batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            writer.writerow([_cell_of_csv(value) for value in row])
    return written.getvalue()


def _cells(rows: pa.Table) -> tuple[list[str], list[list[str]], int]:
    first = rows.slice(0, MOST_ROWS)
    columns = [[_cell(value) for value in column.to_pylist()] for column in first.columns]
    return (
        [_cell(name) for name in rows.column_names],
        [list(row) for row in zip(*columns, strict=True)],
        rows.num_rows - first.num_rows,
    )


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return _short(f"[{', '.join(map(_cell, value))}]")
    return _short(" ".join(str(value).split()))


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _cell_of_csv(value: object) -> object:
    if isinstance(value, list | dict):
        return json.dumps(_plain(value), ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _plain(value: Any) -> Any:
    """Return a value that JSON can carry."""
    match value:
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case decimal.Decimal() | datetime.date() | datetime.time() | datetime.timedelta():
            return str(value)
        case bytes():
            return value.hex()
    return value


def _distinct(names: list[str]) -> list[str]:
    """Return names of which the second, third, … of one name get `_1`, `_2`, …, as in files of JSON that DuckDB writes."""
    found: list[str] = []
    taken = set(names)
    for name in names:
        one, count = name, 0
        while one in found or (count and one in taken):
            count += 1
            one = f"{name}_{count}"
        found.append(one)
    return found


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = [
        " " * (width - _width(cell)) + cell if at_right else cell + " " * (width - _width(cell))
        for cell, width, at_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{markup.escape(cell)}</{tag}>' for cell in cells)}</tr>"
