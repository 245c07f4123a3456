"""A reader of another package: rows of a number, its double and a word, which come in blocks of 40."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from elasticdl.data.plan.blocks import unsplit
from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.installed import Opening
from elasticdl.data.readers.reader import Metadata
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData


class Countable:
    block = 40
    metadata = Metadata(
        ("number", "double", "word"), {"number": "int64", "double": "float64", "word": "string"}
    )

    def __init__(self, rest: str, params: Mapping[str, Any], opening: Opening) -> None:
        if not rest.isdigit():
            raise BadData(f"countable://{rest}: expected a number of rows; write countable://1000")
        self._rows = int(rest)
        self._per_task = max(self.block, opening.records_per_task)
        # what the source was when this process opened it
        self.fingerprints = {"numbers": Path(params["state"]).read_text()}

    def create_shards(self) -> list[tuple[str, int, int]]:
        blocks = [min(self.block, self._rows - first) for first in range(0, self._rows, self.block)]
        return [("numbers", start, count) for start, count in unsplit(blocks, self._per_task)]

    def read(self, task: Task, records: Sequence[int]) -> Columns:
        numbers = np.asarray(records, np.int64)
        words = np.array([f"row {number}" for number in numbers], object)
        return Columns(len(numbers), {"number": numbers, "double": numbers * 2.0, "word": words})


def open_reader(rest: str, params: Mapping[str, Any], opening: Opening) -> Countable:
    return Countable(rest, params, opening)


def hollow(rest: str, params: Mapping[str, Any], opening: Opening) -> Any:
    return SimpleNamespace(create_shards=list)


def lazy(rest: str, params: Mapping[str, Any], opening: Opening) -> Any:
    reader = Countable(rest, params, opening)
    reader.block = 0
    return reader
