"""Tables are read in an environment with an earlier NumPy and pyarrow, and without pandas, which other environments have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from elasticdl.data.readers.recordfiles import open_reader


def test_types_of_columns_are_told_without_pandas(tmp_path: Path) -> None:
    assert importlib.util.find_spec("pandas") is None
    table = pa.table(
        {
            "n": pa.array([1, 2], pa.int8()),
            "x": [0.5, 1.0],
            "b": [True, False],
            "l": [[1.0], []],
            "t": ["a", "b"],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    reader = open_reader(str(tmp_path / "rows.parquet"), {}, tmp_path / "job")
    assert reader.metadata.column_dtypes == {
        "n": "int8",
        "x": "float64",
        "b": "bool",
        "l": "float64[]",
        "t": "string",
    }
