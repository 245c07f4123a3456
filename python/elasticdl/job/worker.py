"""The entry point of a worker process: prepares everything, then lets the loop run.

Preparation is ordered by what takes longest: the framework is imported on the main thread while the connection to the master is made and
the data is found on others. The member asks to join only when its model is built and its step compiled, so that the group never waits
for a start. It decides nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elasticdl.cluster.cluster import RELEASED, process_name
from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.local import exiting
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.cluster.local.place import PROCESS_ENVIRONMENT, Place, own_place
from elasticdl.control.protocol.messages import (
    FoundShards,
    Note,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import ViewId
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.control.transport.keys import Key
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadModel, Cancelled, MissingData
from elasticdl.files.predictions import mark_of, parts_of
from elasticdl.job.datafiles import predictions_draft
from elasticdl.job.heap import keep_freed_memory
from elasticdl.spec import pods
from elasticdl.spec.framework import output_format
from elasticdl.spec.jobspec import PARQUET, JobKind, OnNaN
from elasticdl.spec.machine import threads_per_worker
from elasticdl.worker.events import Exit
from elasticdl.worker.process import MemberProcess, leave_soon

if TYPE_CHECKING:
    from elasticdl.data.plan.onepass import OnePass
    from elasticdl.data.plan.schedule import Schedule
    from elasticdl.data.readers.reader import BadRecords, Reader
    from elasticdl.worker.allreduce.runner import AllReduceWorker
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel
    from elasticdl.worker.ps.runner import PsWorker
    from elasticdl.worker.tasking.predicting import Predicting
    from elasticdl.worker.tasking.runner import TaskWorker

_log = logging.getLogger(__name__)
_SIZES = 4
"""Numbers of records of a chunk for which frameworks that trace make code before the first step; that of others is made when they come."""


class WorkerProcess(MemberProcess):
    """One life of one worker that runs a model file."""

    def __init__(self, place: Place, name: str, leaving: Callable[[Exit], None]) -> None:
        """`leaving` is called at once when the member ends, while the main thread may still be at work."""
        self._leaving = leaving
        self._bad_records: BadRecords | None = None
        """Those that built-in readers leave out."""
        super().__init__(place, name)

    # ------------------------------------------------------------------ the main thread

    def run(self) -> int:
        """Prepare, train, and return the process's exit code."""
        from elasticdl.worker.raised import PROGRAM_ERRORS, program_error

        try:
            worker = self._prepare()
        except Cancelled as over:  # the job ended before its data was known
            return self.leave(Exit(RELEASED, str(over)))
        except PROGRAM_ERRORS as error:
            return self.leave(self.report(program_error(error)))
        self.attach(worker.feed)
        return self.leave(worker.run())

    def _prepare(self) -> AllReduceWorker | PsWorker | TaskWorker:
        """Build the worker: model, data, compiled step, data plane."""
        spec, place = self.spec, self.place
        from elasticdl.worker.contract.framework import find_framework

        framework = find_framework(spec)
        form = output_format(spec, framework).name
        framework.start(threads_per_worker(spec))
        reserved = pods.gpus(spec.worker_resource_request, spec.worker_resource_limit)
        self.warn(framework.unused_gpus(reserved))
        user = framework.load(spec)
        readers = self._open_readers(user.custom_data_reader)
        reader, _ = readers
        process = process_name(self.name)
        if spec.num_ps_pods:
            return self._build_ps(
                framework.ps_adapter(user, spec, reader.metadata, process), readers, form, place
            )
        if spec.kind is not JobKind.TRAIN:
            model = framework.trained(user, spec, reader.metadata, self._weights())
            return self._build_tasking(model, reader, user)
        adapter = framework.adapter(user, spec, reader.metadata, process)
        return self._build(adapter, readers, self._schedule(), form, place)

    def _open_readers(self, custom: Callable[..., Any] | None) -> tuple[Reader, Reader | None]:
        """Return readers of the training data and of what is evaluated, if anything is."""
        from elasticdl.data.plan.order import records_per_task
        from elasticdl.data.readers.custom import open_custom_reader
        from elasticdl.data.readers.reader import BadRecords, check_unchanged, shards_of
        from elasticdl.job.datafiles import open_job_data

        spec = self.spec
        validates = spec.kind is JobKind.TRAIN and bool(spec.validation_data)
        if custom is not None:
            per_task = records_per_task(spec)

            def open_own(origin: str) -> Reader:
                return open_custom_reader(custom, origin, per_task, spec.data_reader_params)

            own = open_own(spec.data)
            other = open_own(spec.validation_data) if validates else None
            self.found(FoundShards(shards_of(own), () if other is None else shards_of(other)))
            return own, other
        data = self.data.result()  # the master has indexed the files; this worker then finds the indexes
        bad_records = self._bad_records = BadRecords(spec.max_bad_records, self._tell_bad_record)

        def open_files(origin: str, shards: Sequence[Shard]) -> Reader:
            try:
                reader = open_job_data(
                    self.place, spec, origin, bad_records, note=self.storage.tell, alive=self.heart.alive
                )
            except MissingData as error:
                raise MissingData(
                    f"{origin} is gone, or this worker can't see it: it was there when the job began. Data must not change while a job "
                    "runs; put it back and start the job again"
                ) from error
            check_unchanged(reader, shards)
            return reader

        return (
            open_files(spec.data, data.shards),
            open_files(spec.validation_data, data.validation) if validates else None,
        )

    def _tell_bad_record(self, what: str) -> bool:
        return self.send(Note(EventKind.BAD_RECORD, ViewId(0), 0, f"skips {what}"))

    def _schedule(self) -> Schedule:
        from elasticdl.data.plan.order import schedule_of

        data = self.data.result()
        return schedule_of(self.spec, data.shards, data.validation)

    def _build(
        self,
        adapter: Adapter,
        readers: tuple[Reader, Reader | None],
        schedule: Schedule,
        form: str,
        place: Place,
    ) -> AllReduceWorker:
        """`form` is the name of the output format."""
        from elasticdl.data.prefetch import ChunkSource
        from elasticdl.worker.allreduce.machine import Member
        from elasticdl.worker.allreduce.runner import AllReduceWorker
        from elasticdl.worker.allreduce.snapshots import Saving
        from elasticdl.worker.auditlog import AuditLog
        from elasticdl.worker.contract.allreduce import Traced
        from elasticdl.worker.evaluating import prepared
        from elasticdl.worker.settings import AHEAD, LoopSettings
        from elasticdl.worker.usercode import naming

        spec, ledger = self.spec, schedule.ledger
        reader, validation = readers
        first = ledger.task(0, 0)
        with naming(first):
            adapter.prepare(reader.read(first, ledger.chunk(first, 0).tolist()))
        if isinstance(adapter, Traced):
            adapter.prepare_sizes(ledger.chunk_sizes(_SIZES))
        evaluating = None
        if validation is not None and schedule.evaluation is not None:
            if not hasattr(adapter, "evaluator"):
                raise BadModel(
                    "the framework of this model file does not evaluate; leave --validation_data out"
                )
            evaluating = prepared(adapter.evaluator(validation.metadata), validation, schedule.evaluation)
        endpoint = self.endpoint()
        output = Path(spec.output) if spec.output else None
        snapshots = place.snapshots(spec)
        return AllReduceWorker(
            member=Member(
                self.id,
                self.name,
                endpoint.address,
                schedule,
                None if snapshots is None else Saving(spec.checkpoint_steps, bool(spec.checkpoint_dir)),
                "" if evaluating is None else evaluating.metrics,
            ),
            adapter=adapter,
            endpoint=endpoint,
            chunks=ChunkSource(reader, ledger, adapter.convert, AHEAD),
            evaluating=evaluating,
            schedule=schedule,
            audit=AuditLog(Path(spec.audit), self.name, self.id, self.note) if spec.audit else None,
            heart=self.heart,
            send=self.send,
            settings=LoopSettings(
                spec.silence_seconds,
                spec.on_nan.value,
                output,
                form,
                snapshots,
                spec.checkpoint_best,
                short_gradients=spec.short_gradients,
            ),
            leaving=self._leaving,
            recorder=self.recorder,
        )

    def _build_ps(
        self, adapter: PsAdapter, readers: tuple[Reader, Reader | None], form: str, place: Place
    ) -> PsWorker:
        """`form` is the name of the output format."""
        from elasticdl._core import ParameterClient
        from elasticdl.catalog.catalog import read_catalog
        from elasticdl.data.plan.order import tasks_of
        from elasticdl.data.plan.waves import Waves
        from elasticdl.data.prefetch import ChunkSource
        from elasticdl.worker.auditlog import PsAuditLog
        from elasticdl.worker.evaluating import prepared
        from elasticdl.worker.ps.machine import PsMember, PsMemberSettings
        from elasticdl.worker.ps.pacing import Pacing
        from elasticdl.worker.ps.runner import PsWorker
        from elasticdl.worker.settings import AHEAD, LoopSettings
        from elasticdl.worker.usercode import naming

        spec, key = self.spec, place.key(Key.DATA)
        data = self.data.result()
        order = tasks_of(spec, data.shards, data.validation)
        ledger = order.ledger
        reader, validation = readers
        first = ledger.task(0, 0)
        with naming(first):
            adapter.prepare(reader.read(first, ledger.chunk(first, 0).tolist()))
        if spec.checkpoint_dir_for_init:
            adapter.adopt(read_catalog(self.model.result()))
        evaluating = None
        if validation is not None and order.evaluation is not None:
            evaluating = prepared(adapter.evaluator(validation.metadata), validation, order.evaluation)
        pacing = Pacing(order, Waves(order) if spec.accumulates else None, spec.sync_version_tolerance)
        settings = PsMemberSettings(
            catalog=adapter.catalog.text(),
            acts_at_end=adapter.acts_at_end,
            skips_nan=spec.on_nan is OnNaN.SKIP_STEP,
            resumed=bool(spec.checkpoint_dir_for_init),
            evaluation=order.evaluation,
            metrics="" if evaluating is None else evaluating.metrics,
            follows=adapter.follows_epochs,
        )
        keep_freed_memory()
        return PsWorker(
            member=PsMember(self.id, self.name, order, pacing, settings),
            adapter=adapter,
            client=ParameterClient(
                self.name,
                key,
                adapter.catalog.core(),
                place.identity,
                short_gradients=spec.short_gradients,
                short_rows=spec.short_rows,
            ),
            chunks=ChunkSource(reader, ledger, adapter.convert, AHEAD),
            evaluating=evaluating,
            audit=PsAuditLog(Path(spec.audit), self.name, self.id, self.note) if spec.audit else None,
            heart=self.heart,
            send=self.send,
            settings=LoopSettings(
                spec.silence_seconds,
                spec.on_nan.value,
                Path(spec.output) if spec.output else None,
                form,
                None,
                spec.checkpoint_best,
                spec.get_model_steps,
            ),
            leaving=self._leaving,
            recorder=self.recorder,
        )

    def _weights(self) -> Weights:
        from elasticdl.spec.edge import check_trained_model
        from elasticdl.worker.tasking.weights import weights_of_checkpoint

        if self.spec.trained_model:
            check_trained_model(self.spec.trained_model)  # in pods nobody has before
            return Path(self.spec.trained_model)
        return weights_of_checkpoint(Path(self.checkpoint.result()), self.place.path / "rows")

    def _build_tasking(self, model: TrainedModel, reader: Reader, user: UserModel) -> TaskWorker:
        from elasticdl.data.plan.evaluation import EvaluationPlan
        from elasticdl.data.plan.order import pass_of
        from elasticdl.worker.evaluating import prepared
        from elasticdl.worker.tasking.machine import TaskMember
        from elasticdl.worker.tasking.runner import EvaluationDoer, TaskDoer, TaskWorker
        from elasticdl.worker.usercode import naming

        spec = self.spec
        plan = pass_of(spec, self.data.result().shards)
        metrics = ""
        doer: TaskDoer
        if isinstance(plan, EvaluationPlan):
            first = plan.task_by_id(0, 0)
            with naming(first):
                model.prepare(reader.read(first, plan.chunk(first, 0).tolist()))
            evaluating = prepared(model.evaluator(reader.metadata), reader, plan)
            metrics, doer = evaluating.metrics, EvaluationDoer(evaluating)
        else:
            doer = self._predicting(model, reader, user, plan)
        member = TaskMember(self.id, self.name, metrics)
        return TaskWorker(member, doer, self.heart, self.send, self._leaving)

    def _predicting(self, model: TrainedModel, reader: Reader, user: UserModel, plan: OnePass) -> Predicting:
        from elasticdl.worker.tasking.predicting import Predicting, Processing, Target

        spec = self.spec
        processing = None
        if user.prediction_outputs_processor is not None:
            processing = Processing(user.prediction_outputs_processor(), process_name(self.name).index)
        key = self.place.key(Key.DATA)
        draft = predictions_draft(self.place, spec, key)
        directory = None if draft is None else parts_of(draft)
        load = None
        if (table := spec.output_table) is not None:
            from elasticdl.data.readers.patience import Patience
            from elasticdl.data.writers.tableload import TableLoad

            patience = Patience(spec.storage_seconds, self.storage.tell, self.heart.alive)
            load = TableLoad(table, mark_of(key), patience)
        target = Target(directory, spec.output_format or PARQUET, spec.prediction_keep, load)
        return Predicting(model, reader, plan, target, self._bad_records, processing)


def begin() -> Place:
    """Settle what has to be before any thread; return the place of the job that this process belongs to."""
    forbid_core_dumps()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # all threads inherit it
    watch_parent()
    exiting.announce()
    place: Place = podplace.own_pod() if podplace.POD_ENVIRONMENT in os.environ else own_place()
    level = place.spec().log_level.value.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    return place


def obey_term(drain: Callable[[], None]) -> None:
    """Start the thread that waits for a SIGTERM and then calls `drain`."""

    def await_term() -> None:
        signal.sigwait({signal.SIGTERM})
        drain()

    threading.Thread(target=await_term, name="sigterm", daemon=True).start()


def run(process: WorkerProcess) -> NoReturn:
    """Run a worker on the main thread, and end with its exit code."""
    code = process.run()
    from elasticdl.worker.raised import remove_generated

    remove_generated()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # threads of the framework and of the user's program must not hold up an end that the master awaits


def main() -> None:
    """Run the worker that the environment names."""
    process = WorkerProcess(begin(), os.environ[PROCESS_ENVIRONMENT], leave_soon)
    obey_term(process.drain)
    run(process)


if __name__ == "__main__":
    main()
