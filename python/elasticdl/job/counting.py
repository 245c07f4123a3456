"""The program of `elasticdl.analyze`: each task of a table becomes a file of its statistics."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasticdl.errors import BadInput
from elasticdl.tabular.statistics import Statistics, of_table


def counted(columns: Mapping[str, Any], vocabulary: int) -> Statistics:
    """Return the statistics of arrays by column; texts that are all numbers are counted as these, too."""
    found = of_table(pa.table({name: _array(one) for name, one in columns.items()}), vocabulary)
    parsed = {
        name: numbers
        for name, one in columns.items()
        if name in found.columns
        and found.columns[name].texts is not None
        and (numbers := _numbers(one)) is not None
    }
    if not parsed:
        return found
    numbers_of = of_table(pa.table(parsed), vocabulary).columns
    return replace(
        found,
        columns={
            name: replace(one, numbers=numbers_of[name].numbers) if name in numbers_of else one
            for name, one in found.columns.items()
        },
    )


def _array(values: Any) -> Any:
    """Return a column of Arrow; rows that are arrays are lists."""
    if values.ndim > 1 or (values.dtype == object and len(values) and isinstance(values[0], np.ndarray)):
        return pa.array(list(values))
    return pa.array(values)


def _numbers(texts: Any) -> Any:
    """Return texts as numbers; None if one is none, or all are empty."""
    given = [text for text in texts if text]
    try:
        return pa.array([float(text) if text else None for text in texts]) if given else None
    except ValueError:
        return None


def main() -> int:
    """Count the tasks that this worker gets. Return an exit code."""
    from elasticdl.worker.shards.face import shards

    asked = json.loads(sys.argv[1])
    try:
        for task in shards(asked["data"], asked["records_per_task"], reader_params=asked["reader_params"]):
            found = counted(task.columns(), asked["vocabulary"])
            with task.output(suffix=".json") as path:
                Path(path).write_text(found.to_json())
    except BadInput as error:
        print(f"elasticdl.analyze: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
