"""`elasticdl.analyze`: statistics of data that any reader reads, counted by the workers of a job, the same bits however many there are.

It is a job of tasks whose files are statistics; they are merged in the order of tasks. The program of its workers is `counting.py`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.job.submit import train
from elasticdl.tabular.statistics import VOCABULARY, Statistics, finished, merge

ROWS = 65_536
"""Of a task."""
_OWN = ("job_command", "work")


def analyze(
    data: str | os.PathLike[str],
    *,
    vocabulary: int = VOCABULARY,
    records_per_task: int = ROWS,
    reader_params: Mapping[str, Any] | None = None,
    **settings: object,
) -> Statistics:
    """Count what the columns of a table have: numbers, values, words.

    Args:
        data: a path or URL, as `--training_data`, of records with columns: Parquet, Arrow, JSON lines, CSV with a header.
        vocabulary: values of a column of text that are kept, the most frequent ones.
        records_per_task: that are counted together by one worker.
        reader_params: of the reader, as --data_reader_params.
        settings: of the job, such as num_workers. `output` names a directory for what the workers count; without one it is removed.

    Raises BadInput, JobFailed or Interrupted.
    """
    if vocabulary < 1 or records_per_task < 1:
        raise BadSetting("vocabulary and records_per_task are 1 or more")
    for name in _OWN:
        if name in settings:
            raise BadSetting(f"analyze: {name} is settled; leave it out")
    asked = {
        "data": _absolute(os.fspath(data)),
        "vocabulary": vocabulary,
        "records_per_task": records_per_task,
        "reader_params": dict(reader_params or {}),
    }
    # an image has a Python of its own
    python = "python" if settings.get("image_name") else sys.executable
    command = [python, "-P", "-m", "elasticdl.job.counting", json.dumps(asked)]
    with tempfile.TemporaryDirectory() as folder:
        output = str(settings.pop("output", "")) or str(Path(folder) / "statistics")
        job: dict[str, Any] = {**settings, "job_command": command, "work": "tasks", "output": output}
        train(**job)
        parts = sorted(Path(output).glob("part-*.json"))
        return finished(merge((Statistics.from_json(part.read_text()) for part in parts), vocabulary))


def _absolute(data: str) -> str:
    """Return where data is, for workers that may run elsewhere on this machine; a URL as it is."""
    return data if "://" in data else str(Path(data).absolute())
