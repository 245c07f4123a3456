"""Statistics of tables: literal values, merging, and what they are written as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.tabular import counting, statistics
from elasticdl.tabular.spread import SKETCH, Moments, Values, merged_quantiles
from elasticdl.tabular.statistics import Statistics, finished, merge, of_table
from tests.tabular.tables import employees, files_of, snapshot


def test_literal_statistics() -> None:
    table = pa.table(
        {
            "x": [1.0, 2.0, 3.0, float("nan"), float("inf"), None],
            "n": [3, 3, 1, 2, 3, 1],
            "t": ["b", "a", "b", "", None, "a"],
            "yes": [True, False, True, True, None, True],
            "l": [[1, 2], [3], [], None, [1, 2, 3], [1]],
            "words": ["A red car", "a blue  car", "red, red", "", None, "one"],
        }
    )
    found = finished(of_table(table)).columns
    x = found["x"].numbers
    assert x is not None
    assert (found["x"].rows, found["x"].nulls, x.low, x.high) == (6, 3, 1.0, 3.0)
    assert x.moments.mean == 2.0
    assert x.moments.deviation == pytest.approx(np.std([1, 2, 3]))
    assert x.quantiles[0] == 1.0
    assert x.quantiles[128] == 2.0
    assert found["n"].values == Values(((3.0, 3), (1.0, 2), (2.0, 1)), 3)
    assert found["t"].values is not None
    assert found["t"].values.counts == (("a", 2), ("b", 2))
    assert found["t"].nulls == 2
    assert found["yes"].values is not None
    assert found["yes"].values.counts == ((1.0, 4), (0.0, 1))
    assert found["l"].lengths == (0, 3)
    assert found["l"].elements is not None
    assert found["l"].elements.rows == 7
    assert found["words"].words is not None
    assert found["words"].words.counts == (("red", 3), ("a", 2), ("car", 2), ("blue", 1), ("one", 1))


def test_a_table_in_files_is_counted_as_one_in_memory(tmp_path: Path) -> None:
    table = employees()
    assert statistics.of(files_of(snapshot(tmp_path, table))) == finished(of_table(table))


def test_numbers_of_many_columns_are_counted_alike_in_memory_and_by_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(3)
    few = {f"few{place}": draw.integers(0, 40, 300) / 4 for place in range(counting._TOGETHER)}
    many = {f"many{place}": draw.standard_normal(1500)[:300] for place in range(2)}
    gaps = pa.array([None if place % 3 else float(place % 7) for place in range(300)])
    dates = pa.array(draw.integers(0, 9, 300).astype("int32"), pa.int32()).cast(pa.date32())
    table = pa.table({**few, **many, "gaps": gaps, "yes": draw.integers(0, 2, 300) > 0, "day": dates})
    files = files_of(snapshot(tmp_path, table))
    here = statistics.of(files)
    monkeypatch.setattr(statistics, "_SMALL", 0)
    monkeypatch.setattr(counting, "_counts", None)
    assert statistics.of(files) == here
    assert [*here.columns] == table.column_names
    values = here.columns["gaps"].values
    assert values is not None
    assert values.counts == (
        *((one, 15) for one in (0.0, 3.0)),
        *((one, 14) for one in (1.0, 2.0, 4.0, 5.0, 6.0)),
    )


def test_parts_merge_to_the_whole_and_come_back_from_json() -> None:
    table = employees(600)
    parts = [of_table(table.slice(start, 150)) for start in range(0, 600, 150)]
    merged, whole = finished(merge(parts)), finished(of_table(table))
    for name, column in whole.columns.items():
        other = merged.columns[name]
        assert (other.rows, other.nulls, other.values, other.texts, other.lengths) == (
            column.rows,
            column.nulls,
            column.values,
            column.texts,
            column.lengths,
        )
        if column.numbers is not None:
            assert other.numbers is not None
            assert other.numbers.moments.mean == pytest.approx(column.numbers.moments.mean, rel=1e-6)
            assert other.numbers.moments.deviation == pytest.approx(
                column.numbers.moments.deviation, rel=1e-6
            )
            assert (other.numbers.low, other.numbers.high) == (column.numbers.low, column.numbers.high)
    assert Statistics.from_json(merged.to_json()) == merged
    assert finished(merge([Statistics.from_json(part.to_json()) for part in parts])) == merged


def test_moments_of_nothing_change_nothing() -> None:
    some = Moments(2, 1.5, 0.5)
    assert Moments(0, 0.0, 0.0).merged(some) == some == some.merged(Moments(0, 0.0, 0.0))


def test_the_number_of_distinct_values_is_estimated_where_not_all_are_kept() -> None:
    def texts(first: int, many: int) -> pa.Table:
        return pa.table({"t": [f"text {number}" for number in range(first, first + many)]})

    merged = merge([of_table(texts(0, 6000), 100), of_table(texts(3000, 6000), 100)], 100).columns["t"].values
    assert merged is not None
    assert len(merged.counts) == 100
    assert len(merged.sketch) == SKETCH
    assert not merged.is_complete
    assert merged.distinct == pytest.approx(9000, rel=0.15)


def test_quantiles_of_parts_are_near_those_of_the_whole() -> None:
    random = np.random.default_rng(3)
    one, other = random.normal(0, 1, 5000), random.normal(2, 1, 20000)
    parts = [statistics.quantiles_of(one), statistics.quantiles_of(other)]
    merged = np.array(merged_quantiles(parts, (5000, 20000), statistics.POINTS))
    whole = np.array(statistics.quantiles_of(np.concatenate([one, other])))
    assert (merged[0], merged[-1]) == (whole[0], whole[-1])
    assert np.abs(merged - whole)[5:-5].max() < 0.2
