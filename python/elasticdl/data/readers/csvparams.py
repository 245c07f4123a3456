"""What is special about CSV: its parameters, and columns that several files have to have alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.data.readers.reader import Metadata
from elasticdl.errors import BadData, BadSetting
from elasticdl.spec.nearest import nearest


@dataclass(frozen=True, slots=True)
class CSVParams:
    """Parameters of the CSV reader.

    Attributes:
        header: whether the first row names the columns; None (`auto`): it does if none of its fields is empty
            or reads as a number.
        delimiter: what separates fields; None: a tab in `.tsv` files, a comma otherwise.
    """

    header: bool | None = None
    delimiter: str | None = None

    def delimiter_of(self, path: str) -> str:
        """Return what separates the fields of a file."""
        return self.delimiter or ("\t" if path.lower().endswith((".tsv", ".tsv.gz")) else ",")


NO_PARAMS = CSVParams()


def csv_params(params: Mapping[str, Any]) -> CSVParams:
    """Read `data_reader_params` of CSV. Raises BadSetting."""
    known = ("header", "delimiter")
    for name in params:
        if name not in known:
            raise BadSetting(
                f"--data_reader_params: the CSV reader's parameters are header and delimiter; got {name}{nearest(name, known)}"
            )
    headers: dict[Any, bool | None] = {True: True, False: False, "true": True, "false": False, "auto": None}
    header = params.get("header", "auto")
    header = header.lower() if isinstance(header, str) else header
    if not isinstance(header, bool | str) or header not in headers:
        raise BadSetting(f"--data_reader_params: header is true, false or auto; got {params['header']!r}")
    delimiter = params.get("delimiter")
    if delimiter == "\\t":
        delimiter = "\t"
    if delimiter is not None and not _is_delimiter(delimiter):
        raise BadSetting(
            f"--data_reader_params: delimiter is one ASCII character such as ; or \\t; got {delimiter!r}"
        )
    return CSVParams(headers[header], delimiter)


def _is_delimiter(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value not in '"\r\n\0'


CSVColumns = tuple[str, list[str] | None, int]
"""A CSV file's name, header and number of columns."""


def check_columns(first: CSVColumns, other: CSVColumns) -> None:
    """Raise BadData unless two files have the same columns."""
    if first[1:] == other[1:]:
        return

    def describe(file: CSVColumns) -> str:
        return f"{file[0]} has {f'the header {file[1]}' if file[1] else f'no header and {file[2]} columns'}"

    raise BadData(
        f"CSV files of one data set need the same columns, but {describe(first)} and {describe(other)} "
        "(--data_reader_params=header=True or header=False says what the first row is)"
    )


def csv_metadata(first: CSVColumns | None) -> Metadata:
    """Return what `feed` learns about the columns of a file; nothing if there is none. Raises BadData."""
    if first is None:
        return Metadata()
    name, header, columns = first
    names = tuple(header or (f"column_{i}" for i in range(columns)))
    if len(set(names)) < len(names):
        raise BadData(f"{name} has two columns of one name: {', '.join(names)}")
    return Metadata(names, dict.fromkeys(names, "string"))
