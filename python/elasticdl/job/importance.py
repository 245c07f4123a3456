"""What the loss of a model depends on, for every framework: its rows are evaluated again and again, with a column shuffled each time.

The model file runs in a process of its own, as it does in the workers of a job: it gets no password, and may end its process. One process
does it all, as a job for each shuffle would start its workers for a second's work.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl.errors import BadData, BadInput, JobFailed
from elasticdl.job.progress import Progress
from elasticdl.spec import jobspec
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.machine import threads_per_worker
from elasticdl.tabular.importance import SHUFFLES, Importance, permuted

_RESULT, _ROOM = "result.json", "data"


def permutation(
    spec: JobSpec,
    columns: Sequence[str],
    *,
    seed: int,
    shuffles: int = SHUFFLES,
    without: Collection[str] = (),
) -> list[Importance]:
    """Return how much the loss of a trained model grows when a column is shuffled, the most important column first.

    Args:
        spec: a job that evaluates the model on the rows.
        columns: that are shuffled.
        seed: of the shuffles.
        shuffles: of each column.
        without: variables of the environment that the model file does not get.

    Raises BadInput, JobFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = json.dumps(
            {"spec": spec.to_json(), "columns": list(columns), "seed": seed, "shuffles": shuffles}
        )
        command = [sys.executable, "-P", "-m", "elasticdl.job.importance", folder]
        environment = {name: value for name, value in os.environ.items() if name not in without}
        done = subprocess.run(
            command, input=asked, env=environment, text=True, stdout=sys.stderr, check=False
        )
        try:
            found = json.loads((Path(folder) / _RESULT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise JobFailed(
                f"{spec.model_def}: its process has ended (exit code {done.returncode}) before the rows were evaluated"
            ) from None
    if "refused" in found:
        raise BadInput(found["refused"])
    if "failed" in found:
        raise JobFailed(found["failed"])
    return [Importance(*one) for one in found["importances"]]


class _Losses:
    """The loss of a model on rows, of which columns may be other ones."""

    def __init__(self, spec: JobSpec, room: Path) -> None:
        """Load the model; `room`: a directory for what is found out about the data. Raises BadInput."""
        from elasticdl.data.plan.order import records_per_task
        from elasticdl.data.plan.shard import Task
        from elasticdl.data.readers.reader import shards_of
        from elasticdl.data.readers.recordfiles import open_reader
        from elasticdl.worker.contract.framework import find_framework
        from elasticdl.worker.contract.records import Columns, picked
        from elasticdl.worker.usercode import naming

        framework = find_framework(spec)
        framework.start(threads_per_worker(spec))
        user = framework.load(spec)
        reader = open_reader(spec.data, spec.data_reader_params, room, None, None, records_per_task(spec))
        (shard,) = shards_of(reader)
        task = Task(0, 0, shard, shard.start, shard.start + shard.count)
        rows = reader.read(task, range(task.start, task.end))
        assert isinstance(rows, Columns), "the rows are those of a table"
        self.rows: Mapping[str, Any] = rows.arrays
        self._count, self._size = len(rows), spec.minibatch_size
        sample = picked(rows, range(min(self._size, self._count)))
        with naming(task):
            model = framework.trained(user, spec, reader.metadata, Path(spec.trained_model))
            model.prepare(sample)
            self._evaluator = model.evaluator(reader.metadata)
            self._evaluator.prepare(sample)

    def __call__(self, changed: Mapping[str, Any]) -> float:
        """Return the loss with these columns in place of the rows' own."""
        from elasticdl.control.protocol.metricstates import combine
        from elasticdl.worker.contract.records import Columns, picked
        from elasticdl.worker.usermetrics import LOSS

        rows = Columns(self._count, {**self.rows, **changed})
        self._evaluator.begin_task(0)
        for start in range(0, self._count, self._size):
            chunk = picked(rows, range(start, min(start + self._size, self._count)))
            self._evaluator.evaluate(self._evaluator.convert(chunk))
        state = combine(self._evaluator.catalog(), [self._evaluator.task_state()])
        return float(self._evaluator.metric_values(state)[LOSS])  # type: ignore[arg-type]  # one number of all models


def _importances(
    spec: JobSpec, columns: Sequence[str], seed: int, shuffles: int, room: Path
) -> list[Importance]:
    losses = _Losses(spec, room)
    if not math.isfinite(before := losses({})):
        raise BadData(f"the loss of these rows is {before}; choose rows that the model can be evaluated on")
    shuffled = {name: losses.rows[name] for name in columns}
    with Progress("columns shuffled", len(columns)) as progress:
        return permuted(lambda changed: -losses(changed), shuffled, seed, shuffles, progress)


def main(argv: Sequence[str]) -> int:
    """Do what standard input asks for: `python -m elasticdl.job.importance DIRECTORY`; the result is a file in it."""
    from elasticdl.worker.raised import PROGRAM_ERRORS, program_error, remove_generated

    directory, asked = Path(argv[0]), json.load(sys.stdin)
    spec = jobspec.from_json(asked["spec"])
    logging.basicConfig(level=spec.log_level.value.upper(), format="%(asctime)s %(levelname)s %(message)s")
    found: dict[str, object]
    try:
        importances = _importances(
            spec, asked["columns"], asked["seed"], asked["shuffles"], directory / _ROOM
        )
        found = {"importances": [[one.feature, one.importance, one.stddev] for one in importances]}
    except BadInput as error:
        found = {"refused": program_error(error).traceback}
    except PROGRAM_ERRORS as error:
        found = {"failed": program_error(error).traceback}
    remove_generated()
    (directory / _RESULT).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
