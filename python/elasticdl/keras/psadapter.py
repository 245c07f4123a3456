"""The adapter for Keras models on TensorFlow whose weights live on parameter servers; the Protocol is in `worker/contract/`.

It composes the parts (feed, embeddings, step, export) and holds the worker's copy of the dense variables; it talks to no other process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl._core import Batch
from elasticdl.catalog.catalog import Catalog, Variable, first_difference
from elasticdl.catalog.tablereader import TableReader
from elasticdl.checkpoint.parquet import write_parquet
from elasticdl.cluster.cluster import FIRST_WORKER, ProcessName
from elasticdl.errors import BadInput, BadModel
from elasticdl.files.output import made_beside
from elasticdl.keras.building import make_optimizer
from elasticdl.keras.embedding import (
    WHOLE_TABLE,
    Recorded,
    check_range,
    looking_up,
    names_of,
    server_side,
    table_of,
)
from elasticdl.keras.evaluation import KerasEvaluator
from elasticdl.keras.export import export
from elasticdl.keras.feed import Batch as FeedBatch
from elasticdl.keras.feed import FeedPipeline
from elasticdl.keras.firstcall import make_model
from elasticdl.keras.library import KERAS, Library
from elasticdl.keras.loss import ChunkLoss
from elasticdl.keras.monitored import monitored_at_barriers
from elasticdl.keras.optimizer import describe as describe_optimizer
from elasticdl.keras.pscallbacks import PsCallbacks
from elasticdl.keras.psevaluation import IdsOf, WeightsOnServers
from elasticdl.keras.psstep import PsStep
from elasticdl.keras.serving import served
from elasticdl.keras.shown import show
from elasticdl.keras.streaming import Blocks, Matrix
from elasticdl.spec.jobspec import PARQUET, JobSpec, Mode
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.seeds import chunk_seeds

Weights = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_MATRIX = SimpleNamespace(name="embeddings", _unique_id="embeddings")
"""What a table's variable would be called, for optimizers that decay weights by name."""


class KerasPsAdapter:
    """Implements `elasticdl.worker.contract.adapter.PsAdapter`."""

    catalog: Catalog

    def __init__(
        self,
        user: UserModel,
        spec: JobSpec,
        metadata: Any = None,
        process: ProcessName = FIRST_WORKER,
        library: Library = KERAS,
    ) -> None:
        """`metadata`: what the reader knows of its records, the third argument of `feed`.

        `process`: the life of a worker that this is; only callbacks make a difference of it. Nothing is built yet; `prepare` does."""
        self._user = user
        self._spec = spec
        self._pipeline = FeedPipeline(user.feed, Mode.TRAINING, metadata, user.path)
        self._process = process
        self._library = library
        self._last: tuple[Weights, Weights] | None = None
        """The variables as callbacks found them at the end of training, and as they left them."""

    # ------------------------------------------------------------------ building

    def prepare(self, sample: Records) -> None:
        """Build model, optimizer and compiled step, and run the step once on `sample`, without any lasting effect.

        Raises BadModel or BadData for what only running shows: expected and received, with the user's exception as the cause.
        """
        user = self._user
        with server_side(self._spec.embedding_threshold, self._library), looking_up(Recorded()):
            self.model, batch, outputs = make_model(
                user, self._spec.seed, self._library, self._pipeline, sample
            )
        spec = self._pipeline.spec
        assert spec is not None, "feed has been traced"
        self.optimizer = make_optimizer(user, self.model)
        rule = describe_optimizer(self.optimizer)
        loss = ChunkLoss(user.loss, f"{user.path}: {self._spec.loss}", self._library)
        try:
            self._step = PsStep(self.model, self.optimizer, loss, spec, user.path)
        except BadInput:
            raise
        except Exception as error:
            raise BadModel(
                f"{user.path}: the training step can't be made: {describe(error, user.path)}\n"
                f"feed gave {show(spec)}; the model gives {show(outputs)}"
            ) from error
        self._callbacks = PsCallbacks(
            user.callbacks,
            self.model,
            self.optimizer,
            self._spec.num_epochs,
            user.path,
            self._process,
            monitored_at_barriers(user, self._spec),
        )
        self._served = served(user, self.model)
        self._check_layers()
        self._dense = self._step.first()
        self._places = self._find_places()
        layout, admission = self._step.layout, self._spec.embedding_admission
        decays = self._library.decays(self.optimizer)
        variables = [
            *(Variable(v.path, tuple(v.shape), decays(v)) for v in layout.trained),
            *(Variable(v.path, tuple(v.shape), False, adds=True) for v in layout.changed),
        ]
        names = names_of(self._step.layers)
        tables = [
            table_of(layer, name, admission, decays(_MATRIX))
            for layer, name in zip(self._step.layers, names, strict=True)
        ]
        self.catalog = Catalog(self._spec.seed % 2**64, tables, variables, rule)
        self.catalog.check_sizes()
        self._core = self.catalog.core()
        sample_batch = self.convert(sample)
        assert batch.data is not None, "make_model has looked"
        zeros = [
            np.zeros(len(one) * table.width, np.float32)
            for one, table in zip(sample_batch.batches, tables, strict=True)
        ]
        try:
            self.compute(sample_batch, zeros, 0, 0)
        except BadInput:
            raise
        except Exception as error:
            raise BadModel(
                f"{user.path}: the first training step failed: {describe(error, user.path)}\n"
                f"feed gave {show(spec)}; the model gives {show(outputs)}"
            ) from error

    def adopt(self, catalog: Catalog) -> None:
        """Take slots and seed from a checkpoint's catalog. Raises BadModel, naming the first difference, if that is of another model."""
        difference = first_difference(catalog, self.catalog)
        if difference:
            raise BadModel(
                f"{self._user.path}: the checkpoint in --checkpoint_dir_for_init is of another model: {difference} (there and here)"
            )
        self.catalog = catalog
        self._core = catalog.core()

    def _check_layers(self) -> None:
        for layer in self._step.layers:
            if not layer.trainable:
                raise BadModel(
                    f"{self._user.path}: the embedding {layer.name} is not trainable, and rows on parameter servers are trained; let it be "
                    f"trained, or {WHOLE_TABLE}"
                )
            is_matrix = self._spec.output and self._spec.output_format != PARQUET
            if is_matrix and layer.input_dim is None:
                raise BadModel(
                    f"{self._user.path}: the embedding {layer.name} has ids of any range, so no matrix of a Keras model can hold its "
                    "rows; write --output_format=parquet, leave out --output, or give the layer input_dim"
                )

    def _find_places(self) -> list[slice]:
        """Return where the catalog's variables lie in the flat row."""
        places, start = {}, 0
        for variable in self._step.variables:
            size = int(np.prod(variable.shape, dtype=np.int64))
            places[id(variable)] = slice(start, start + size)
            start += size
        layout = self._step.layout
        return [places[id(variable)] for variable in (*layout.trained, *layout.changed)]

    # ------------------------------------------------------------------ chunks

    def convert(self, records: Records) -> PsBatch:
        """Run the user's `feed` over one chunk and look up its ids; may be called from another thread. Raises BadData."""
        return self._looked_up(self._pipeline(records), self._step.ids)

    def _looked_up(self, batch: FeedBatch, ids_of: IdsOf) -> PsBatch:
        """Return a batch with the distinct ids of its tables; `ids_of` returns table and ids of each lookup of features."""
        if batch.data is None:
            return PsBatch(0, (), None)
        of_table: list[list[Ids]] = [[] for _ in self._step.layers]
        lookups = ids_of(batch.data[0])
        for table, ids in lookups:
            check_range(self._user.path, self._step.layers[table], ids)
            of_table[table].append(ids)
        batches = [Batch(self._core, table, np.concatenate(ids).data) for table, ids in enumerate(of_table)]
        starts = [0] * len(batches)
        inverses = [np.frombuffer(one.inverse(), np.uint32).view(np.int32) for one in batches]
        places = []
        for table, ids in lookups:
            places.append(tf.constant(inverses[table][starts[table] : starts[table] + len(ids)]))
            starts[table] += len(ids)
        return PsBatch(batch.examples, batches, (batch.data, places))

    def first_values(self) -> Sequence[npt.NDArray[np.float32]]:
        """Return the first value of each variable of the catalog, flat."""
        first = self._step.first()
        return [first[place] for place in self._places]

    def take(self, variable: int, value: npt.NDArray[np.float32]) -> None:
        """Replace a variable's value by that of the servers."""
        self._dense[self._places[variable]] = value

    def compute(
        self, batch: PsBatch, rows: Sequence[npt.NDArray[np.float32]], task: int, chunk: int
    ) -> Gradients:
        """Return a chunk's gradients at the variables taken and these rows."""
        data, places = batch.data
        seeds = chunk_seeds(self._spec.seed, task, chunk, self._step.generators)
        loss, parts, slopes = self._step.compute(data, self._dense, self._step.matrices(rows), places, seeds)
        return Gradients(
            float(loss), [part.numpy() for part in parts], [slope.numpy().reshape(-1) for slope in slopes]
        )

    def evaluator(self, metadata: Any) -> KerasEvaluator:
        """Return what evaluates this model, with nothing traced yet."""
        forward = WeightsOnServers(
            self._user.path, self.model, self._step, self._looked_up, lambda: self._dense
        )
        return KerasEvaluator(self._user, self._spec, metadata, self.model, forward)

    @property
    def follows_epochs(self) -> bool:
        """Tell whether a callback follows epochs or evaluations."""
        return self._callbacks.follow_epochs

    def begin_callbacks(self) -> None:
        """Make the callbacks anew, with the learning rate that the optimizer had then."""
        self._callbacks.begin_again()

    def pass_barrier(self, logs: GateLogs) -> str | None:
        """Run callbacks at a barrier; return a reason if they want the job to stop."""
        return self._callbacks.gate(logs)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the schedule, as callbacks have left it."""
        rate = self._callbacks.rate_at(step)
        return self._library.rate_at(self.optimizer, step) if rate is None else rate

    # ------------------------------------------------------------------ the result

    @property
    def acts_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training."""
        return self._callbacks.act_at_end

    def end_training(self, steps: int, writes: bool) -> None:
        """Run what callbacks do at the end of training, on the variables that are written; rows of tables are on the servers."""
        if not self.acts_at_end:
            return
        self._assign(self._dense)
        self._callbacks.end_at(steps, writes)
        left = self._dense.copy()
        for variable, place in self._placed():
            left[place] = variable.numpy().reshape(-1)
        self._last = self._dense.copy(), left

    def _assign(self, weights: Weights) -> None:
        for variable, place in self._placed():
            variable.assign(weights[place].reshape(variable.shape))

    def _placed(self) -> Iterable[tuple[Any, slice]]:
        """Return the model's variables with their places in the flat row, in the catalog's order."""
        layout = self._step.layout
        return zip((*layout.trained, *layout.changed), self._places, strict=True)

    def export(self, path: str, kind: str, tables: TableReader | None = None) -> str:
        """Write the model for plain users of Keras, or what it has learnt as Parquet; this object is of no use afterwards.

        No table is in memory as a whole. Raises OSError with what was at `path` intact.

        Without a path nothing is written, and the digest is of the dense variables only.
        """
        assert tables is not None, "what is on servers is read from there"
        digest = hashlib.blake2b(digest_size=16)
        weights = self._dense
        if self._last is not None and np.array_equal(self._last[0], weights):
            weights = self._last[1]
        values = [weights[place] for place in self._places]
        for value in values:
            digest.update(value.tobytes())
        self._assign(weights)
        if path and kind == PARQUET:
            with made_beside(path, "learnt") as folder:
                write_parquet(folder, self.catalog, values, tables)
        elif path:
            spec = self._pipeline.spec
            assert spec is not None, "feed has been traced"
            self._library.detach(self.model)  # callbacks had the optimizer there
            export(self._served, path, kind, spec[0], self._matrices(tables, digest))
        return digest.hexdigest()

    def _matrices(self, reader: TableReader, digest: hashlib.blake2b) -> list[Matrix]:
        def told(blocks: Blocks) -> Blocks:
            for block in blocks:
                digest.update(block.data)
                yield block

        matrices = []
        for table, layer in enumerate(self._step.layers):
            assert layer.input_dim is not None, "prepare refuses to write tables of any range as matrices"
            matrices.append(Matrix(layer, told(reader.matrix(table, layer.input_dim))))
        return matrices
