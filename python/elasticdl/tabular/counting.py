"""The queries of statistics: DuckDB counts, in one pass over all columns and one over each that may be a category.

Of a table whose numbers are all in memory for their quantiles they are counted there: each query is planned for all columns of the table,
so that one for each of them takes a time that grows with the square of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticdl.tabular import statistics
from elasticdl.tabular.kinds import Kind, kind_of
from elasticdl.tabular.spread import SKETCH, Moments, Values

_NUMBERS = (Kind.BOOLEAN, Kind.INTEGER, Kind.NUMBER, Kind.DATE, Kind.TIMESTAMP)
_IDEOGRAPHS = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{f900}-\x{faff}]"
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_PUNCTUATION = r"""[!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~\']"""
"""What `keras.layers.TextVectorization` leaves out; it lowers ASCII letters only."""
_MANY_WORDS, _MANY_CHARACTERS = 2.0, 6.0
"""Words of a text, on average, or characters of one of ideographs, from which on its words are counted."""
_TOGETHER = 250
"""Columns of one query: DuckDB takes the longer for each of them the more there are."""


def count(
    connection: Any,
    schema: pa.Schema,
    table: str,
    sample: str,
    vocabulary: int,
    progress: Callable[[int], object] = lambda done: None,
) -> statistics.Statistics:
    """Return the statistics of what `table` selects from; quantiles are of `sample`. Columns of no known kind are left out.

    `progress`: gets the number of columns that are counted.
    """
    kinds = {field.name: kind_of(field.type) for field in schema}
    named = {name: kind for name, kind in kinds.items() if kind is not None}
    columns = [
        f"{_value(_quoted(name), kind)} AS c{place}" for place, (name, kind) in enumerate(named.items())
    ] or ["0 AS none"]
    rows, row = _aggregated(connection, columns, table, named)
    arrays = _arrays(connection, columns, sample, named)
    found, start = {}, 0
    for place, (name, kind) in enumerate(named.items()):
        aggregates = row[start : start + len(_aggregates("", kind))]
        start += len(aggregates)
        source = f"(SELECT {_value(_quoted(name), kind)} AS v FROM {table})"
        if kind in _NUMBERS:
            found[name] = _numbers(connection, source, rows, aggregates, arrays[place], table == sample)
        elif kind is Kind.TEXT:
            found[name] = _texts(connection, source, rows, vocabulary)
        else:
            found[name] = _lists(connection, name, schema, table, sample, rows, aggregates, vocabulary)
        progress(place + 1)
    return statistics.Statistics(rows, found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(column: str, kind: Kind) -> str:
    """Return what a value is counted as: a finite number, a text that is not empty, a list; else null."""
    match kind:
        case Kind.BOOLEAN:
            return f"{column}::INTEGER::DOUBLE"
        case Kind.INTEGER | Kind.NUMBER:
            return f"CASE WHEN isfinite({column}::DOUBLE) THEN {column}::DOUBLE END"
        case Kind.DATE | Kind.TIMESTAMP:
            return f"epoch({column})::DOUBLE"
        case Kind.TEXT:
            return f"nullif({column}, '')"
    return column


def _aggregates(column: str, kind: Kind) -> Sequence[str]:
    if kind in _NUMBERS:
        log = f"ln(1 + greatest({column}, 0))"
        ours = (
            "count({0})",
            "avg({0})",
            "var_pop({0})",
            "min({0})",
            "max({0})",
            "approx_count_distinct({0})",
        )
        return [*(one.format(column) for one in ours), f"avg({log})", f"var_pop({log})"]
    if kind is Kind.TEXT:
        return []  # they are counted of distinct texts, of which there are fewer
    return [f"count({column})", f"min(len({column}))", f"max(len({column}))"]


def _aggregated(
    connection: Any, columns: Sequence[str], table: str, named: dict[str, Kind]
) -> tuple[int, list[Any]]:
    """Return the number of rows, and the aggregates of all columns."""
    kinds, rows, found = list(named.values()), 0, []
    for first in range(0, len(columns), _TOGETHER):
        some = range(first, min(first + _TOGETHER, len(kinds)))
        parts = [part for place in some for part in _aggregates(f"c{place}", kinds[place])]
        chosen = ", ".join(columns[first : first + _TOGETHER])
        query = f"SELECT {', '.join(['count(*)', *parts])} FROM (SELECT {chosen} FROM {table})"
        ((rows, *aggregates),) = connection.execute(query).fetchall()
        found += aggregates
    return rows, found


def _arrays(
    connection: Any, columns: Sequence[str], sample: str, named: dict[str, Kind]
) -> dict[int, npt.NDArray[np.float64]]:
    """Return the finite numbers of a sample, by the places of their columns."""
    places = [place for place, kind in enumerate(named.values()) if kind in _NUMBERS]
    if not places:
        return {}
    chosen = ", ".join(f"c{place}" for place in places)
    arrays = connection.execute(
        f"SELECT {chosen} FROM (SELECT {', '.join(columns)} FROM {sample})"
    ).fetchnumpy()
    return {place: _finite(arrays[f"c{place}"]) for place in places}


def _finite(array: Any) -> Any:
    array = np.ma.filled(np.ma.asarray(array).astype(np.float64), np.nan)
    return array[np.isfinite(array)]


def _numbers(
    connection: Any,
    source: str,
    rows: int,
    row: Sequence[Any],
    sample: npt.NDArray[np.float64],
    is_whole: bool,
) -> statistics.Column:
    """Return the statistics of a column of numbers; `is_whole`: the sample has all of them."""
    many, mean, variance, low, high, about, log_mean, log_variance = row
    if not many:
        empty = Moments(0, 0.0, 0.0)
        return statistics.Column(rows, rows, statistics.Numbers(empty, empty, 0.0, 0.0, ()), Values((), 0))
    values = None
    if about <= 2 * statistics._FEW:
        counted = _counts(sample) if is_whole else _counts_of(connection, source)
        if len(counted) <= statistics._FEW:
            values = Values(tuple((float(value), int(times)) for value, times in counted), len(counted))
    return statistics.Column(
        rows,
        rows - many,
        statistics.Numbers(
            Moments(many, mean, variance * many),
            Moments(many, log_mean, log_variance * many),
            low,
            high,
            statistics.quantiles_of(sample),
        ),
        values,
    )


def _counts(numbers: npt.NDArray[np.float64]) -> list[tuple[Any, Any]]:
    """Return distinct numbers, and how often each is there, the most frequent first; one more than are kept at most."""
    values, times = np.unique(numbers, return_counts=True)
    order = np.lexsort((values, -times))[: statistics._FEW + 1]
    return list(zip(values[order], times[order], strict=True))


def _counts_of(connection: Any, source: str) -> list[tuple[Any, Any]]:
    """Return the same of the numbers `v` of a table, one more than are kept at most."""
    found: list[tuple[Any, Any]] = connection.execute(
        f"SELECT v, count(*) AS n FROM {source} WHERE v IS NOT NULL GROUP BY v ORDER BY n DESC, v LIMIT {statistics._FEW + 1}"
    ).fetchall()
    return found


_OF_TEXTS = ", ".join(
    f"coalesce({one}, 0)"
    for one in (
        "sum(n)",
        "sum(n * length(v))",
        "sum(n * words)",
        "sum(n) FILTER (WHERE has_ideographs)",
        "max(CASE WHEN has_ideographs THEN length(v) ELSE words END)",
    )
)


def _texts(connection: Any, source: str, rows: int, vocabulary: int) -> statistics.Column:
    values = _counted(
        connection,
        "texts",
        f"SELECT v, count(*) AS n FROM {source} WHERE v IS NOT NULL GROUP BY v",
        vocabulary,
    )
    words = "length(trim(v)) - length(replace(trim(v), ' ', '')) + 1"
    each = f"SELECT v, n, {words} AS words, regexp_matches(v, '{_IDEOGRAPHS}') AS has_ideographs FROM texts"
    (found,) = connection.execute(f"SELECT {_OF_TEXTS} FROM ({each})").fetchall()
    many, characters, words_in_all, ideographs, longest = map(int, found)
    known = None
    if many and 2 * ideographs > many and characters >= _MANY_CHARACTERS * many:
        known = _counted(connection, "words", _words(characters=True), statistics.WORDS)
    elif many and words_in_all >= _MANY_WORDS * many:
        known = _counted(connection, "words", _words(characters=False), statistics.WORDS)
    texts = statistics.Texts(characters, words_in_all, ideographs, longest)
    return statistics.Column(rows, rows - many, None, values, texts, known)


def _words(characters: bool) -> str:
    """Return the query that counts the words, or characters, of the texts that were counted last."""
    plain = "regexp_replace(translate(v, '{}', '{}'), '{}', '', 'g')".format(
        _UPPER, _LOWER, _PUNCTUATION.replace("'", "''")
    )
    words = f"string_split({plain}, '')" if characters else rf"regexp_split_to_array({plain}, '\s+')"
    each = f"SELECT unnest({words}) AS v, n FROM texts"
    return f"SELECT v, CAST(sum(n) AS BIGINT) AS n FROM ({each}) WHERE v <> '' GROUP BY v"


def _counted(connection: Any, name: str, query: str, most: int) -> Values:
    """Return the values `v` and their numbers `n` that a query gives, which are the table `name` from then on."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
    ((distinct, sketch),) = connection.execute(
        f"SELECT count(*), min(hash(v), {SKETCH}) FROM {name}"
    ).fetchall()
    counts = connection.execute(f"SELECT v, n FROM {name} ORDER BY n DESC, v LIMIT {most}").fetchall()
    return Values(
        tuple((str(value), int(times)) for value, times in counts), int(distinct), tuple(sorted(sketch or ()))
    )


def _lists(
    connection: Any,
    name: str,
    schema: pa.Schema,
    table: str,
    sample: str,
    rows: int,
    row: Sequence[Any],
    vocabulary: int,
) -> statistics.Column:
    many, least, most = row
    inner = pa.schema([pa.field(name, schema.field(name).type.value_type)])
    elements = count(
        connection,
        inner,
        f"(SELECT unnest({_quoted(name)}) AS {_quoted(name)} FROM {table})",
        f"(SELECT unnest({_quoted(name)}) AS {_quoted(name)} FROM {sample})",
        vocabulary,
    ).columns[name]
    return statistics.Column(rows, rows - many, lengths=(least or 0, most or 0), elements=elements)
