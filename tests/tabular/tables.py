"""Small tables with every kind of column, as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.tabular import statistics
from elasticdl.tabular.features import Plan
from elasticdl.tabular.plan import derive


def employees(rows: int = 400, seed: int = 7) -> pa.Table:
    """Return people whose income follows from what is known of them; names with `/` and Chinese characters too."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 70, rows)
    city = random.choice(["Berlin", "Lagos", "Lima", "杭州"], rows)
    team = random.integers(1, 6, rows)
    bonus = np.where(random.random(rows) < 0.2, np.nan, random.lognormal(3, 2, rows))
    remote = random.random(rows) < 0.5
    score = age / 10 + team + 2.0 * (city == "Lima") + random.normal(0, 0.3, rows)
    return pa.table(
        {
            "id": [f"e-{number:05}" for number in range(rows)],
            "年龄": age.astype(np.int64),
            "a/b": bonus,
            "city": pa.array([None if place % 40 == 0 else str(one) for place, one in enumerate(city)]),
            "team": team.astype(np.int32),
            "remote": remote,
            "joined": 1.6e9 + random.random(rows) * 1e8,
            "about": [
                f"likes {one} and works on {'boats' if place % 3 else 'large red cars'}"
                for place, one in enumerate(city)
            ],
            "marks": [[1.0 * place, 2.0, 3.0] for place in range(rows)],
            "tags": [["x", "y"][: place % 3] for place in range(rows)],
            "income": np.where(score > np.median(score), ">50K", "<=50K"),
        }
    )


TYPES = {"joined": pa.timestamp("us")}
"""What the database called columns that a snapshot writes in another type."""


def snapshot(folder: Path, table: pa.Table, name: str = "training") -> Path:
    """Write a table as a snapshot has it: a folder of two files."""
    path = folder / name
    path.mkdir(parents=True)
    half = table.num_rows // 2 or 1
    for number, start in enumerate(range(0, table.num_rows, half)):
        pq.write_table(table.slice(start, half), path / f"part-{number:05}.parquet", row_group_size=8192)
    return path


def files_of(path: Path) -> list[Path]:
    """Return the files of a snapshot."""
    return sorted(path.glob("*.parquet"))


def schema_of(table: pa.Table) -> pa.Schema:
    """Return the types that the database has."""
    return pa.schema([pa.field(one.name, TYPES.get(one.name, one.type)) for one in table.schema])


def planned(path: Path, table: pa.Table, label: str, **asked: Any) -> Plan:
    """Derive the plan of a snapshot."""
    return derive(schema_of(table), statistics.of(files_of(path)), label, **asked)
