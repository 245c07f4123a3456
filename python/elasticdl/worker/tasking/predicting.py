"""Predicting: minibatches are read ahead, the model is called, and each task's rows are written as one file of its own.

A file appears under its name when it is whole; a task whose file is there is done, by any worker. The same task has the same bytes in
every worker.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from elasticdl.control.protocol.messages import MetricValues
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Task
from elasticdl.data.prefetch import ChunkSource
from elasticdl.data.readers.reader import BadRecords, Reader
from elasticdl.data.writers.tableload import TableLoad
from elasticdl.errors import BadData, BadModel, BadSetting, Unwritable
from elasticdl.files.drafts import new_draft
from elasticdl.files.predictions import part_name
from elasticdl.spec.jobspec import CSV
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.contract.trained import Predictions, TrainedModel
from elasticdl.worker.settings import AHEAD
from elasticdl.worker.tasking.rows import RECORD, SHARD, table
from elasticdl.worker.usercode import naming

_WRITTEN_BYTES = 32 << 20
"""Of rows in memory, from which on they are written as a row group."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where predictions go.

    Attributes:
        directory: in which each task's file is made, None if none is wanted.
        suffix: `parquet` or `csv`.
        keep: columns of the data that are written, too.
        load: puts the files into a table, None if they are the result themselves.
    """

    directory: Path | None
    suffix: str
    keep: tuple[str, ...]
    load: TableLoad | None = None

    @property
    def is_flat(self) -> bool:
        """Tell whether each number of a vector is a column of its own."""
        return self.suffix == CSV or (self.load is not None and self.load.table.scheme == "sqlite")


class Processing:
    """The user's processor: `process(predictions, worker_id)` gets minibatches; with a parameter `task` it gets whole tasks.

    It may get some twice: a worker that is lost may have been processing.
    """

    def __init__(self, processor: Any, worker: int) -> None:
        """`worker`: index of this worker. Raises BadModel if the processor processes nothing."""
        if not callable(process := getattr(processor, "process", None)):
            raise BadModel(
                f"{type(processor).__name__}: a processor of predictions has a method process(self, predictions, worker_id); define it"
            )
        self._process = process
        parameters = inspect.signature(self._process).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._takes_tasks = sum(one.kind in positional for one in parameters) >= 3
        self._worker = worker
        self._task: list[Predictions] = []

    def begin(self) -> None:
        """Begin a task; what there is of another one is given up."""
        self._task = []

    def add(self, predicted: Predictions) -> None:
        """Take a minibatch."""
        if self._takes_tasks:
            self._task.append(predicted)
        else:
            self._process(_as_user_sees(predicted), self._worker)

    def end(self, task: int) -> None:
        """End a task."""
        if self._takes_tasks and self._task:
            whole = {name: np.concatenate([one[name] for one in self._task]) for name in self._task[0]}
            self._process(_as_user_sees(whole), self._worker, task)
        self._task = []


class Predicting:
    """Predicts with the model of one worker, for `TaskDoer`."""

    def __init__(
        self,
        model: TrainedModel,
        reader: Reader,
        plan: OnePass,
        target: Target,
        bad_records: BadRecords | None,
        processing: Processing | None,
    ) -> None:
        """Try the model on the first minibatch.

        Args:
            model: nothing of it is built yet.
            reader: of the data.
            plan: its tasks.
            target: where predictions go.
            bad_records: those that the reader has left out, None if it leaves out none.
            processing: the user's processor, if there is one.

        Raises BadModel, BadData or BadSetting for what only running shows.
        """
        self._model, self._reader, self._plan = model, reader, plan
        self._target, self._bad_records, self._processing = target, bad_records, processing
        first = plan.task_by_id(0, 0)
        indices = plan.chunk(first, 0).tolist()
        sample = reader.read(first, indices)
        with naming(first):
            model.prepare(sample)
            kept = self._kept(sample)
            predicted = model.predict(model.convert(sample), 0, 0)
        self._check(predicted, len(sample), _named(first))
        self._nothing: Predictions = {name: one[:0] for name, one in predicted.items()}
        self._nothing_kept: Mapping[str, npt.NDArray[Any]] = {name: one[:0] for name, one in kept.items()}
        if twice := sorted({SHARD, RECORD, *predicted}.intersection(kept)):
            raise BadSetting(f"--prediction_keep: {twice[0]!r} is a column of the predictions; leave it out")
        count = len(sample)
        self._schema = table("", range(count), [True] * count, kept, predicted, target.is_flat).schema
        if target.load is not None:
            target.load.check_columns(self._schema)
        self._chunks = ChunkSource(reader, plan, self._converted, AHEAD)
        self._rows: list[pa.Table] = []
        self._file: _PartFile | None = None

    def metrics(self, body: bytes) -> MetricValues:
        """Return nothing: nothing is evaluated."""
        return ()

    def load(self) -> None:
        """Put all files into the table, unless a worker before this one has. Raises what `TableLoad.load` raises."""
        target = self._target
        assert target.load is not None, "it is leased for a table"
        parts = [path for task in range(self._plan.num_tasks) if (path := self._path(task)) is not None]
        target.load.load(parts, self._plan.num_records)

    def close(self) -> None:
        """Read no more, and load nothing any more."""
        self._chunks.close()
        if self._target.load is not None:
            self._target.load.cancel()

    def do(self, task: int, chunk: int, following: int | None) -> bytes | None:
        """Predict for a minibatch. Raises BadData or Unwritable."""
        if chunk == 0:
            self._give_up()
            if self._is_done(task):
                return b""
            if self._processing is not None:
                self._processing.begin()
        count = self._plan.num_chunks(task)
        self._chunks.want(keys := self._plan.keys(task, chunk, following, AHEAD))
        _, _, made = self._chunks.get(keys[0])
        self._add(task, chunk, made)
        if chunk + 1 < count:
            return None
        self._end(task)
        return b""

    # ------------------------------------------------------------------ a minibatch

    def _converted(self, records: Records) -> tuple[int, Mapping[str, npt.NDArray[Any]], Any]:
        return len(records), self._kept(records), self._model.convert(records)

    def _kept(self, records: Records) -> dict[str, npt.NDArray[Any]]:
        """Return the columns that are kept. Raises BadSetting if there are none of that name."""
        names = self._target.keep
        if not names:
            return {}
        if isinstance(records, Columns):
            known: Sequence[str] = list(records.arrays)
            arrays: Mapping[str, npt.NDArray[Any]] = records.arrays
        else:
            known = tuple(getattr(self._reader.metadata, "column_names", ()))
            is_table = len(records) > 0 and isinstance(records[0], list)
            arrays = {
                name: np.array([row[place] for row in records], dtype=object)
                for place, name in enumerate(known if is_table else ())
            }
        if missing := [name for name in names if name not in arrays]:
            raise BadSetting(
                f"--prediction_keep: the data has no column {missing[0]!r}; it has {', '.join(known) or 'no columns'}"
            )
        return {name: arrays[name] for name in names}

    def _add(
        self, task: int, chunk: int, made: tuple[int, Mapping[str, npt.NDArray[Any]], Any] | None
    ) -> None:
        place = self._plan.task_by_id(0, self._plan.number(task, chunk))
        records = self._plan.chunk(place, 0).tolist()
        shard = place.shard.name
        bad = self._bad_records
        good = [bad is None or not bad.has_met(shard, record) for record in records]
        kept: Mapping[str, npt.NDArray[Any]] = self._nothing_kept
        predicted = self._nothing
        if made is not None:
            count, kept, batch = made
            predicted = self._model.predict(batch, task, chunk)
            self._check(predicted, count, _named(place))
            if self._processing is not None:
                self._processing.add(predicted)
        if self._target.directory is None:
            return
        flat = self._target.is_flat
        self._rows.append(table(shard, records, good, kept, predicted, flat).cast(self._schema))
        if sum(rows.nbytes for rows in self._rows) >= _WRITTEN_BYTES:
            self._write(task)

    def _check(self, predicted: Predictions, records: int, where: str) -> None:
        """Raise BadData unless there is one prediction for each record."""
        if not predicted:
            raise BadData(
                f"feed made no example of the {records} records of {where}; predictions need one for each record"
            )
        for name, one in predicted.items():
            if one.ndim == 0 or len(one) != records:
                count = "a single value" if one.ndim == 0 else f"{len(one)} rows"
                raise BadData(
                    f'the output {name!r} has {count} for the {records} records of {where}; with the mode "prediction" feed may leave '
                    "out no record, and the model gives one row for each"
                )

    # ------------------------------------------------------------------ files

    def _is_done(self, task: int) -> bool:
        path = self._path(task)
        return path is not None and path.exists()

    def _path(self, task: int) -> Path | None:
        directory = self._target.directory
        return None if directory is None else directory / part_name(task, self._target.suffix)

    def _write(self, task: int) -> None:
        """Write the rows in memory."""
        path = self._path(task)
        if path is None or not self._rows:
            return
        rows, self._rows = pa.concat_tables(self._rows), []
        with _unwritable(path):
            if self._file is None:
                self._file = _PartFile(path, self._target.suffix, self._schema)
            self._file.write(rows)

    def _end(self, task: int) -> None:
        if self._processing is not None:
            self._processing.end(task)
        self._write(task)
        file, self._file = self._file, None
        if file is not None:
            with _unwritable(file.path):
                file.close()

    def _give_up(self) -> None:
        """Drop what there is of a task that was not ended."""
        file, self._file, self._rows = self._file, None, []
        if file is not None:
            file.drop()


class _PartFile:
    """A file that is being written, beside the directory in which it is put when it is closed: that may have become the result by then."""

    def __init__(self, path: Path, suffix: str, schema: pa.Schema) -> None:
        """Begin it. Raises OSError."""
        self.path = path
        self._draft, descriptor = new_draft(path.parent.parent / path.name)
        self._stream = open(descriptor, "wb")  # noqa: SIM115 (it is closed with the part)
        kind = pyarrow.csv.CSVWriter if suffix == CSV else pyarrow.parquet.ParquetWriter
        self._writer = kind(self._stream, schema)

    def write(self, rows: pa.Table) -> None:
        """Add rows. Raises OSError."""
        self._writer.write_table(rows)

    def close(self) -> None:
        """Complete it. Raises OSError."""
        self._writer.close()
        with self._stream:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._draft.replace(self.path)

    def drop(self) -> None:
        """Leave nothing."""
        self._stream.close()
        with suppress(OSError):
            self._draft.unlink(missing_ok=True)


@contextmanager
def _unwritable(path: Path) -> Iterator[None]:
    """Raise Unwritable, which names the file, for an OSError within."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"predictions can't be written to {path}", error, "start the job again") from None


def _named(task: Task) -> str:
    """Return what people call these records."""
    return f"{task.shard.name} from record {task.start} (counted from 0) on"


def _as_user_sees(predicted: Predictions) -> Any:
    """Return an array if a model has one output, else arrays by name."""
    return next(iter(predicted.values())) if len(predicted) == 1 else dict(predicted)
