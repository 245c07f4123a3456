"""What has been learnt as Parquet files, for those who serve it without Keras, and for tables that no matrix can hold.

A directory::

    variables.parquet        name: string, shape: list of int64, value: list of float32; a row of each dense variable
    tables/NAME.parquet      id: int64, weights: list of float32, all of the table's width; a row of each id that has been trained

`NAME` is the table's, with what does not belong into a file's name as %XX. Rows are in no order. The key `elasticdl` of a table's
metadata has the table as JSON (`Table`, `catalog/catalog.py`), and the seed, from which rows that are not there have their initial weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader

_GROUP = 32 << 20
"""Bytes of weights in a row group, the unit in which readers read."""


def write_parquet(
    folder: Path, catalog: Catalog, values: Sequence[npt.NDArray[np.float32]], reader: TableReader
) -> None:
    """Write the variables' values, flat, and all tables to a new directory. Raises OSError."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    columns = {
        "name": [one.name for one in catalog.variables],
        "shape": [one.shape for one in catalog.variables],
        "value": values,
    }
    types = [("name", pa.string()), ("shape", pa.list_(pa.int64())), ("value", pa.list_(pa.float32()))]
    pq.write_table(pa.table(columns, pa.schema(types)), folder / "variables.parquet", use_dictionary=False)
    for number, table in enumerate(catalog.tables):
        of_table = json.dumps({**asdict(table), "seed": catalog.seed})
        weights = pa.list_(pa.float32(), table.width)
        schema = pa.schema([("id", pa.int64()), ("weights", weights)], {"elasticdl": of_table})
        path = tables / f"{quote(table.name, safe='')}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
            held: list[pa.RecordBatch] = []
            for ids, rows in reader.trained(number):
                found = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), table.width)
                held.append(pa.record_batch([pa.array(ids), found], schema=schema))
                if sum(batch.nbytes for batch in held) >= _GROUP:
                    writer.write_table(pa.Table.from_batches(held))
                    held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
