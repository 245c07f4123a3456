"""The adapter for PyTorch models whose weights live on parameter servers: tables row by row, parameters and statistics as dense variables.

It holds the worker's copy of the dense variables, in the model itself; it talks to no other process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elasticdl._core import Batch as CoreBatch
from elasticdl.catalog.catalog import Catalog, Table, Variable, first_difference
from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.parquet import write_parquet
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.files.output import made_beside
from elasticdl.spec.jobspec import PARQUET, JobSpec, Mode
from elasticdl.torch import building
from elasticdl.torch.building import Schedule
from elasticdl.torch.device import moved, own_device, pinned
from elasticdl.torch.embedding import on_servers
from elasticdl.torch.evaluation import TorchEvaluator
from elasticdl.torch.export import export
from elasticdl.torch.lookups import Looked, looking_up, places_of
from elasticdl.torch.matrices import with_matrices
from elasticdl.torch.psoptimizer import describe
from elasticdl.torch.psrates import Rates
from elasticdl.torch.runtime import seed_chunk
from elasticdl.torch.statistics import Statistics
from elasticdl.torch.tables import Ids, initial_of, tables_of
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.fedbatch import Batch, call
from elasticdl.worker.hooks import Callbacks

Floats = npt.NDArray[np.float32]


class TorchPsAdapter:
    """Implements `elasticdl.worker.contract.ps.PsAdapter`, and `elasticdl.torch.evaluation.Weights` of its model."""

    catalog: Catalog

    def __init__(self, user: UserModel, spec: JobSpec, metadata: Any) -> None:
        """Nothing is built yet; `prepare` does."""
        self._user, self._spec = user, spec
        self._feed = building.make_feed(user, Mode.TRAINING, metadata)
        self._device = own_device()

    # ------------------------------------------------------------------ building

    def prepare(self, sample: Records) -> None:
        """Build everything, and compute the first chunk without any lasting effect. Raises BadModel or BadData."""
        user, batch = self._user, self._feed(sample)
        if not batch.examples:
            raise BadData(
                f"{user.path}: feed made no example of the first {len(sample)} records; the first step can't be tried"
            )
        self._sample = batch
        with on_servers():
            model = building.make_model(user, self._spec.seed, batch)
        self._tables = tables_of(model)
        self._check_tables()
        self.model = model.to(self._device)
        optimizer, _ = self._optimizer()
        self._described = describe(optimizer, user.path)
        self._trained = self._parameters()
        self._statistics = Statistics(self.model, user.path)
        self._rates = Rates(self._optimizer, self._described.rate_decay, user.path)
        self._rates.rate(1)
        self._callbacks = Callbacks(user, self._rates)
        self._describe()
        try:
            self._try(batch)
        except BadInput:
            raise
        except Exception as error:
            raise building.describe_failure(user, batch, error) from error
        self._describe()
        self._first = [_flat(tensor).copy() for tensor in self._tensors()]

    def _optimizer(self) -> tuple[torch.optim.Optimizer, Schedule | None]:
        optimizer = building.make_optimizer(self._user, self.model)
        return optimizer, building.make_schedule(self._user, optimizer)

    def _check_tables(self) -> None:
        for name, layer in self._tables.items():
            if layer.weight._version:
                raise BadModel(
                    f"{self._user.path}: the weight of the embedding {name} is written to, and its rows are on parameter servers; say "
                    "how they begin (initializer=)"
                )
            is_matrix = self._spec.output and self._spec.output_format != PARQUET
            if is_matrix and layer.num_embeddings is None:
                raise BadModel(
                    f"{self._user.path}: the embedding {name} has ids of any range, so no matrix of a PyTorch model can hold its rows; "
                    "write --output_format=parquet, leave out --output, or give it num_embeddings"
                )

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters by name, without the tables. Raises BadModel for a table that is not trained, and for types."""
        for name, layer in self._tables.items():
            if not layer.weight.requires_grad or id(layer.weight) not in self._described.decays:
                raise BadModel(
                    f"{self._user.path}: the embedding {name} is not trained, and rows on parameter servers are; give its weight to the "
                    "optimizer, as a parameter that requires a gradient, or train without --num_ps_pods"
                )
        tables = {id(layer.weight) for layer in self._tables.values()}
        found = {
            name: one
            for name, one in building.plain(self.model).named_parameters()
            if one.requires_grad and id(one) in self._described.decays and id(one) not in tables
        }
        for name, one in found.items():
            if one.dtype is not torch.float32:
                raise BadModel(
                    f"{self._user.path}: the parameter {name!r} is of type {str(one.dtype).removeprefix('torch.')}; parameter servers hold "
                    "float32 only"
                )
        return found

    def _describe(self) -> None:
        decays = self._described.decays
        tables = [
            Table(
                name,
                layer.embedding_dim,
                initial_of(name, layer, self._user.path),
                self._spec.embedding_admission,
                decays[id(layer.weight)],
            )
            for name, layer in self._tables.items()
        ]
        variables = [Variable(name, tuple(one.shape), decays[id(one)]) for name, one in self._trained.items()]
        variables += [
            Variable(name, tuple(one.shape), False, adds=True)
            for name, one in self._statistics.changing.items()
        ]
        self.catalog = Catalog(self._spec.seed % 2**64, tables, variables, self._described.rule)
        self.catalog.check_sizes()
        self._core = self.catalog.core()

    def _try(self, batch: Batch) -> None:
        """Compute a chunk, and find out which statistics it changes."""
        converted = self.converted(batch)
        with self._statistics.watched():
            self._backward(converted, self.any_rows(converted), 0, 0)
        for name, layer in self._tables.items():
            if layer.weight.grad is not None:
                raise BadModel(
                    f"{self._user.path}: the loss depends on the weight of the embedding {name} itself, and its rows are on parameter "
                    "servers; let it depend on rows that the layer returns"
                )
        for parameter in self._trained.values():
            parameter.grad = None

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
        return self.converted(self._feed(records).changed(lambda tensors: pinned(tensors, self._device)))

    def converted(self, batch: Batch) -> PsBatch:
        """Look up the ids of a batch. Raises BadData."""
        if not batch.examples:
            return PsBatch(0, (), None)

        def find(table: int, ids: Ids) -> tuple[CoreBatch, npt.NDArray[np.uint32]]:
            found = CoreBatch(self._core, table, ids.data)
            return found, np.frombuffer(found.inverse(), np.uint32)

        batches, places = places_of(self._tables, batch, self._user.path, find)

        def distinct(table: int) -> Ids:
            return np.frombuffer(batches[table].ids(), np.int64)

        looked = Looked(self._user.path, batch, places, distinct)
        return PsBatch(batch.examples, batches, looked)

    def first_values(self) -> Sequence[Floats]:
        """Return the first value of each variable of the catalog, flat."""
        return self._first

    def take(self, variable: int, value: Floats) -> None:
        """Replace a variable's value by that of the servers."""
        name = self.catalog.variables[variable].name
        with torch.no_grad():
            given = torch.from_numpy(np.array(value))
            if name in self._trained:
                parameter = self._trained[name]
                parameter.copy_(given.view(parameter.shape))
            else:
                self._statistics.take(name, given)

    def compute(self, batch: PsBatch, rows: Sequence[Floats], task: int, chunk: int) -> Gradients:
        """Return a chunk's gradients at the variables taken and these rows."""
        self._statistics.begin()
        loss, leaves = self._backward(batch, rows, task, chunk)
        changes = self._statistics.end()
        added = self._described.added
        dense = []
        for parameter in self._trained.values():
            slope, parameter.grad = parameter.grad, None
            dense.append(_decayed(slope, parameter, added[id(parameter)]))
        of_rows = [
            _decayed(leaf.grad, leaf, added[id(layer.weight)])
            for leaf, layer in zip(leaves, self._tables.values(), strict=True)
        ]
        return Gradients(loss, [*map(_flat, dense), *map(_flat, changes)], [*map(_flat, of_rows)])

    def _backward(
        self, batch: PsBatch, rows: Sequence[Floats], task: int, chunk: int
    ) -> tuple[float, list[torch.Tensor]]:
        """Compute a chunk's gradients; return its loss and the rows, which have theirs."""
        looked: Looked = batch.data
        seed_chunk(self._spec.seed, task, chunk)
        there = looked.batch.changed(lambda tensors: moved(tensors, self._device))
        leaves = [row.requires_grad_() for row in self._leaves(rows)]
        self.model.train()
        with looking_up(self._tables, looked, there, leaves):
            loss = building.loss_of(self._user, there, call(self.model, there.features))
        if not loss.requires_grad:
            raise BadModel(f"{self._user.path}: the loss does not depend on any parameter of the model")
        loss.backward()
        return float(loss.detach()), leaves

    def _leaves(self, rows: Sequence[Floats]) -> list[torch.Tensor]:
        return [
            torch.from_numpy(np.array(row)).view(-1, layer.embedding_dim).to(self._device)
            for row, layer in zip(rows, self._tables.values(), strict=True)
        ]

    def evaluator(self, metadata: Any) -> TorchEvaluator:
        """Return what evaluates this model."""
        return TorchEvaluator(self._user, self._spec, metadata, self.model, self)

    def any_rows(self, converted: PsBatch) -> Sequence[Floats]:
        """Return rows that are all different, so that metrics see different examples."""
        random = np.random.default_rng(0)
        return [
            random.uniform(-1.0, 1.0, len(ids) * layer.embedding_dim).astype(np.float32)
            for ids, layer in zip(converted.batches, self._tables.values(), strict=True)
        ]

    def batch_of(self, converted: PsBatch) -> Batch:
        """Return the batch of what was converted."""
        looked: Looked | None = converted.data
        return Batch(0, None) if looked is None else looked.batch

    def looking_up(
        self, converted: PsBatch, there: Batch, rows: Sequence[Floats]
    ) -> AbstractContextManager[None]:
        """Let layers find these rows."""
        return looking_up(self._tables, converted.data, there, self._leaves(rows))

    @property
    def follows_epochs(self) -> bool:
        """Tell whether a callback, or the schedule, follows epochs or evaluations."""
        return self._callbacks.follow_epochs or self._rates.follow_epochs

    def begin_callbacks(self) -> None:
        """Make callbacks and schedule anew, with the learning rate that the optimizer had then."""
        self._rates.begin()
        self._callbacks.begin()

    def pass_barrier(self, logs: GateLogs) -> str | None:
        """Step a schedule of epochs, and run callbacks, at a barrier; return a reason if they want the job to stop."""
        if logs.epoch_ended:
            self._rates.end_epoch()
        return self._callbacks.gate(logs)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the schedule, as callbacks have left it."""
        return self._rates.rate(step)

    # ------------------------------------------------------------------ the result

    @property
    def acts_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training."""
        return self._callbacks.act_at_end

    def end_training(self, steps: int, writes: bool) -> None:
        """Run what callbacks do at the end of training."""
        self._callbacks.end(steps, writes)

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model for plain users of PyTorch, or what it has learnt as Parquet; this object is of no use afterwards.

        No table is in memory as a whole, but for `exported`. Returns the digest of what is written, of the variables only without a path
        and for Parquet. Raises OSError with what was at `path` intact.
        """
        assert tables is not None, "what is on servers is read from there"
        digest = hashlib.blake2b(digest_size=16)
        values = [_flat(tensor) for tensor in self._tensors()]
        for value in values:
            digest.update(value.tobytes())
        if path and kind == PARQUET:
            with made_beside(path, "learnt") as folder:
                write_parquet(folder, self.catalog, values, tables)
        elif path:
            with with_matrices(self._tables, tables, path, digest):
                export(self.model, path, kind, self._sample, self._user.path)
        return digest.hexdigest()

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield the values of the catalog's variables, in its order."""
        yield from self._trained.values()
        yield from self._statistics.changing.values()


def _decayed(slope: torch.Tensor | None, value: torch.Tensor, share: float) -> torch.Tensor:
    """Return a gradient, zeros for none, with this share of the value added, as PyTorch's optimizers do by `weight_decay`."""
    value = value.detach()
    found = torch.zeros_like(value) if slope is None else slope
    return found.add(value, alpha=share) if share else found


def _flat(tensor: torch.Tensor) -> Floats:
    """Return a tensor's values, in its own memory if that is so already."""
    found: Floats = tensor.detach().reshape(-1).to("cpu", torch.float32).numpy()
    return found
