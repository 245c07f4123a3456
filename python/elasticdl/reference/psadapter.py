"""The adapter for workers with parameter servers: tables live there row by row, parameters and statistics as dense variables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch as CoreBatch
from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Table, Variable, first_difference
from elasticdl.catalog.tablereader import TableReader
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.files.output import made_beside
from elasticdl.reference.building import (
    Batch,
    describe_failure,
    feed,
    first_parameters,
    make_model,
    make_optimizer,
    random_of,
)
from elasticdl.reference.evaluation import ReferenceEvaluator
from elasticdl.reference.models import Arrays, Model
from elasticdl.reference.optimizers import Optimizer
from elasticdl.spec.jobspec import PARQUET, JobSpec
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.hooks import Callbacks
from elasticdl.worker.npzfile import write_npz

Weights = npt.NDArray[np.float32]


def catalog_of(spec: JobSpec, model: Model, optimizer: Optimizer, parameters: Arrays) -> Catalog:
    """Return what a model has on the servers: its tables, then parameters and statistics as variables."""
    tables = [
        Table(name, one.width, Initial(InitialKind.UNIFORM, -one.scale, one.scale), spec.embedding_admission)
        for name, one in model.tables().items()
    ]
    variables = [Variable(name, value.shape) for name, value in parameters.items()]
    variables += [Variable(name, value.shape, adds=True) for name, value in model.statistics().items()]
    return Catalog(spec.seed % 2**64, tables, variables, optimizer.rule())


class ReferencePsAdapter:
    """Implements `elasticdl.worker.contract.ps.PsAdapter`."""

    catalog: Catalog

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec, self._metadata = user, spec, metadata

    def prepare(self, sample: Records) -> None:
        """Build everything, and compute one chunk. Raises BadModel or BadData."""
        user = self._user
        self._model = make_model(user)
        self._optimizer = make_optimizer(user)
        self._callbacks = Callbacks(user, self._optimizer)
        parameters = first_parameters(user, self._model, self._spec.seed)
        self._first = [
            np.asarray(value, np.float32).reshape(-1)
            for value in (*parameters.values(), *self._model.statistics().values())
        ]
        self._dense = [value.copy() for value in self._first]
        self.catalog = catalog_of(self._spec, self._model, self._optimizer, parameters)
        self.catalog.check_sizes()
        self._core = self.catalog.core()
        batch = self.convert(sample)
        try:
            self.compute(batch, self.any_rows(batch), 0, 0)
        except BadInput:
            raise
        except Exception as error:
            raise describe_failure(user, batch.data, error) from error

    def adopt(self, catalog: Catalog) -> None:
        """Take slots and seed from a checkpoint's catalog. Raises BadModel, naming the first difference, if that is of another model."""
        difference = first_difference(catalog, self.catalog)
        if difference:
            raise BadModel(
                f"{self._user.path}: the checkpoint in --checkpoint_dir_for_init is of another model: {difference} (there and here)"
            )
        self.catalog = catalog
        self._core = catalog.core()

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> PsBatch:
        """Run the user's `feed` over one chunk and look up its ids. Raises BadData."""
        return self.converted(feed(self._user, self._metadata, records))

    def converted(self, batch: Batch) -> PsBatch:
        """Look up the ids of a batch. Raises BadData."""
        if not batch.examples:
            return PsBatch(0, (), batch)
        ids = self._model.ids(batch.features)
        batches = []
        for number, (name, table) in enumerate(self._model.tables().items()):
            lookups = np.ascontiguousarray(ids[name], np.int64)
            if len(lookups) and not 0 <= lookups.min() <= lookups.max() < table.ids:
                raise BadData(
                    f"{self._user.path}: the table {name} has the ids 0 to {table.ids - 1}, received {lookups.min()} to {lookups.max()}"
                )
            batches.append(CoreBatch(self._core, number, lookups.data))
        return PsBatch(batch.examples, batches, batch)

    def first_values(self) -> Sequence[Weights]:
        """Return the first value of each variable of the catalog, flat."""
        return self._first

    def take(self, variable: int, value: Weights) -> None:
        """Replace a variable's value by that of the servers."""
        self._dense[variable] = value.copy()

    def _values(self) -> Mapping[str, Weights]:
        described = zip(self.catalog.variables, self._dense, strict=True)
        return {one.name: value.reshape(one.shape) for one, value in described}

    def compute(self, batch: PsBatch, rows: Sequence[Weights], task: int, chunk: int) -> Gradients:
        """Return a chunk's gradients at the variables taken and these rows."""
        data, values, looked_up = self.of_batch(batch, rows)
        places = [np.frombuffer(one.inverse(), np.uint32) for one in batch.batches]
        tables = self.catalog.tables
        random = random_of(self._spec.seed, task, chunk)
        found = self._model.compute(values, looked_up, data.features, data.labels, random)
        slopes = []
        for table, of_table, inverse in zip(tables, rows, places, strict=True):
            slope = np.zeros((len(of_table) // table.width, table.width), np.float32)
            np.add.at(slope, inverse, found.rows[table.name])
            slopes.append((slope / np.float32(batch.examples)).reshape(-1))
        dense = [
            (
                found.statistics[one.name] - values[one.name]
                if one.adds
                else found.gradients[one.name] / batch.examples
            )
            for one in self.catalog.variables
        ]
        flat = [np.asarray(value, np.float32).reshape(-1) for value in dense]
        return Gradients(found.loss / batch.examples, flat, slopes)

    def any_rows(self, converted: PsBatch) -> Sequence[Weights]:
        """Return rows of zeros."""
        tables = self.catalog.tables
        return [
            np.zeros(len(one) * table.width, np.float32)
            for one, table in zip(converted.batches, tables, strict=True)
        ]

    def of_batch(self, converted: PsBatch, rows: Sequence[Weights]) -> tuple[Batch, Arrays, Arrays]:
        """Return the batch, the variables taken, and of each table the rows of its lookups, of shape [lookups, width]."""
        looked_up = {
            table.name: of_table.reshape(-1, table.width)[np.frombuffer(one.inverse(), np.uint32)]
            for table, of_table, one in zip(self.catalog.tables, rows, converted.batches, strict=True)
        }
        return converted.data, self._values(), looked_up

    def evaluator(self, metadata: Any) -> ReferenceEvaluator:
        """Return what evaluates this model."""
        return ReferenceEvaluator(self._user, metadata, self._model, self)

    @property
    def follows_epochs(self) -> bool:
        """Tell whether a callback follows epochs or evaluations."""
        return self._callbacks.follow_epochs

    def begin_callbacks(self) -> None:
        """Make the callbacks anew, with the learning rate that the optimizer had then."""
        self._callbacks.begin()

    def pass_barrier(self, logs: GateLogs) -> str | None:
        """Run callbacks at a barrier; return a reason if they want the job to stop."""
        return self._callbacks.gate(logs)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the schedule, as callbacks have left it."""
        return self._optimizer.rate(step)

    # ------------------------------------------------------------------ the result

    @property
    def acts_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training."""
        return self._callbacks.act_at_end

    def end_training(self, steps: int, writes: bool) -> None:
        """Run what callbacks do at the end of training."""
        self._callbacks.end(steps, writes)

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write variables and tables; return the digest of what is written, of the variables only without a path. Raises OSError."""
        assert tables is not None, "what is on servers is read from there"
        digest = hashlib.blake2b(digest_size=16)
        for value in self._dense:
            digest.update(value.tobytes())
        if path and kind == PARQUET:
            from elasticdl.checkpoint.parquet import (
                write_parquet,
            )  # here: it imports PyArrow, a tenth of a worker's start

            with made_beside(path, "learnt") as folder:
                write_parquet(folder, self.catalog, self._dense, tables)
        elif path:
            values = whole(self._model, self._values(), tables)
            for name in self._model.tables():
                digest.update(values[name].tobytes())
            write_npz(path, values)
        return digest.hexdigest()


def whole(model: Model, values: Arrays, tables: TableReader) -> Arrays:
    """Return the values with the model's tables as matrices beside them; they have to fit into memory, as those of a .npz file do."""
    matrices = {
        name: np.concatenate(list(tables.matrix(number, table.ids)))
        for number, (name, table) in enumerate(model.tables().items())
    }
    return {**values, **matrices}
