"""Statistics of a table's columns: what a model of it is derived from.

They are of the very rows that are trained on, by DuckDB: aggregates of all columns by one query, and the values of each column that may be
a category. Parts are merged in a fixed order, so many processes may count; what is rounded at the end is equal where sums differ in their
last bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.tabular.spread import Moments as Moments
from elasticdl.tabular.spread import Values, merged_quantiles

if TYPE_CHECKING:
    import pyarrow as pa

VOCABULARY = 100_000
"""Values of a column that are kept, the most frequent ones."""
WORDS = 20_000
"""Words of a column of text that are kept."""
POINTS = 257
"""Quantiles of a column of numbers, the least and the greatest value included."""
_SAMPLED = 1 << 17
"""Rows of which quantiles are taken: of shuffled rows a part says as much."""
_SMALL = 1 << 22
"""Values of a table that is read once: there is a query for each column, and to open files for it takes longer than to count."""
_FEW = 1_000
"""Distinct numbers that are kept as values."""
_EXACT = float(1 << 53)
"""Up to it each integer is a float of its own."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a column of numbers has; missing and infinite ones are left out.

    Attributes:
        moments: of the numbers.
        logs: of ln(1 + x), with 0 for negative ones.
        low: the least.
        high: the greatest.
        quantiles: POINTS of them at equal distances; empty if there are no numbers.
    """

    moments: Moments
    logs: Moments
    low: float
    high: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """What a column of text has, summed over its rows; empty ones are left out.

    Attributes:
        characters: of all.
        words: parted by spaces.
        ideographs: texts with Chinese or Japanese characters.
        longest: words, or characters, of the longest.
    """

    characters: int
    words: int
    ideographs: int
    longest: int


@dataclass(frozen=True, slots=True)
class Column:
    """Statistics of one column.

    Attributes:
        rows: all.
        nulls: nulls, empty texts, and numbers that are not finite.
        numbers: of a column of numbers, or of texts that are all numbers; dates are seconds since 1970, false is 0.
        values: how often each is there; None where there are too many numbers, or none is a category.
        texts: of a column of text.
        words: of a column of text with several words.
        lengths: the least and the greatest number of elements of a column of lists.
        elements: statistics of those elements.
    """

    rows: int
    nulls: int
    numbers: Numbers | None = None
    values: Values | None = None
    texts: Texts | None = None
    words: Values | None = None
    lengths: tuple[int, int] | None = None
    elements: Column | None = None

    @property
    def is_blurred(self) -> bool:
        """Tell whether it has numbers that are counted as their neighbours are, as these are floats: integers beyond 2⁵³."""
        numbers = self.numbers
        return numbers is not None and max(-numbers.low, numbers.high) >= _EXACT


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a table.

    Attributes:
        rows: of the table.
        columns: by name, in the table's order.
    """

    rows: int
    columns: Mapping[str, Column]

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Statistics:
        """Read what `to_json` wrote."""
        found = json.loads(text)
        return Statistics(found["rows"], {name: _column(one) for name, one in found["columns"].items()})


def of(
    files: Sequence[Path],
    vocabulary: int = VOCABULARY,
    progress: Callable[[int], object] = lambda done: None,
) -> Statistics:
    """Return the statistics of Parquet files of one schema; `progress` gets the number of columns that are counted.

    Raises OSError, or duckdb.Error for files that can't be read.
    """
    import duckdb
    import pyarrow.parquet as pq

    from elasticdl.tabular.counting import count

    schema = pq.read_schema(files[0])
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    step = max(1, -(-rows // _SAMPLED))
    table = f"read_parquet([{names}])"
    sample = (
        f"(SELECT * FROM read_parquet([{names}], file_row_number = true) WHERE file_row_number % {step} = 0)"
    )
    with duckdb.connect() as connection:
        if step == 1 and rows * len(schema) <= _SMALL:
            connection.execute(f"CREATE TEMP TABLE part AS FROM {table}")
            table = sample = "part"
        found = count(connection, schema, table, sample, vocabulary, progress)
    return finished(found)


def of_table(table: pa.Table, vocabulary: int = VOCABULARY) -> Statistics:
    """Return the statistics of a part in memory, for `merge`: the same bits in any process."""
    import duckdb

    from elasticdl.tabular.counting import count

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("part", table)
        return count(connection, table.schema, "part", "part", vocabulary)


def merge(parts: Iterable[Statistics], vocabulary: int = VOCABULARY) -> Statistics:
    """Return the statistics of all rows of parts, in the order given; `finished` rounds them. Raises ValueError if there is no part."""
    whole: Statistics | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        columns = {
            name: _merged(column, part.columns[name], vocabulary) for name, column in whole.columns.items()
        }
        whole = Statistics(whole.rows + part.rows, columns)
    if whole is None:
        raise ValueError("no part to merge")
    return whole


def finished(statistics: Statistics) -> Statistics:
    """Round means and deviations to what a float32 has, in which the last bits of sums do not show."""
    return replace(
        statistics, columns={name: _rounded(column) for name, column in statistics.columns.items()}
    )


def _rounded(column: Column) -> Column:
    numbers = column.numbers
    if numbers is not None:
        numbers = replace(numbers, moments=numbers.moments.rounded(), logs=numbers.logs.rounded())
    return replace(
        column, numbers=numbers, elements=None if column.elements is None else _rounded(column.elements)
    )


def _merged(one: Column, other: Column, vocabulary: int) -> Column:
    return Column(
        one.rows + other.rows,
        one.nulls + other.nulls,
        _both(one.numbers, other.numbers, _numbers) if one.texts is None else _written(one, other),
        # numbers of which one part has too many
        None
        if one.values is None or other.values is None
        else one.values.merged(other.values, vocabulary if one.texts is not None else _FEW),
        _both(one.texts, other.texts, _texts),
        _both(one.words, other.words, lambda a, b: a.merged(b, WORDS)),
        _both(one.lengths, other.lengths, lambda a, b: (min(a[0], b[0]), max(a[1], b[1]))),
        _both(one.elements, other.elements, lambda a, b: _merged(a, b, vocabulary)),
    )


def _both(one: Any, other: Any, merge_two: Any) -> Any:
    return other if one is None else one if other is None else merge_two(one, other)


def _written(one: Column, other: Column) -> Numbers | None:
    """Return the numbers of a column of text that are all numbers; None if one part has other texts."""
    if one.nulls == one.rows or other.nulls == other.rows:
        return other.numbers if one.nulls == one.rows else one.numbers
    return None if one.numbers is None or other.numbers is None else _numbers(one.numbers, other.numbers)


def _numbers(one: Numbers, other: Numbers) -> Numbers:
    if not one.quantiles or not other.quantiles:
        return one if one.quantiles else other
    weights = one.moments.count, other.moments.count
    return Numbers(
        one.moments.merged(other.moments),
        one.logs.merged(other.logs),
        min(one.low, other.low),
        max(one.high, other.high),
        merged_quantiles([one.quantiles, other.quantiles], weights, POINTS),
    )


def _texts(one: Texts, other: Texts) -> Texts:
    return Texts(
        one.characters + other.characters,
        one.words + other.words,
        one.ideographs + other.ideographs,
        max(one.longest, other.longest),
    )


def _column(found: Any) -> Column:
    numbers, texts = found["numbers"], found["texts"]
    return Column(
        found["rows"],
        found["nulls"],
        None
        if numbers is None
        else Numbers(
            Moments(**numbers["moments"]),
            Moments(**numbers["logs"]),
            numbers["low"],
            numbers["high"],
            tuple(numbers["quantiles"]),
        ),
        None if found["values"] is None else Values.of_json(found["values"]),
        None if texts is None else Texts(**texts),
        None if found["words"] is None else Values.of_json(found["words"]),
        None if found["lengths"] is None else (found["lengths"][0], found["lengths"][1]),
        None if found["elements"] is None else _column(found["elements"]),
    )


def quantiles_of(numbers: Any) -> tuple[float, ...]:
    """Return POINTS quantiles of an array of finite numbers, each one of the numbers."""
    if not len(numbers):
        return ()
    return tuple(float(one) for one in np.quantile(numbers, np.linspace(0, 1, POINTS), method="inverted_cdf"))
