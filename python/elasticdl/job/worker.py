"""The entry point of a worker process: prepares everything, then lets the loop run.

Preparation is ordered by what takes longest: the framework is imported on the main thread while the connection to the master is made and
the data is found on others. The member asks to join only when its model is built and its step compiled, so that the group never waits
for a start. It decides nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl._core import Heart
from elasticdl.cluster.cluster import RELEASED, process_name
from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.cluster.local.place import Place, own_place
from elasticdl.cluster.local.processes import PROCESS_ENVIRONMENT
from elasticdl.control.protocol.messages import (
    Data,
    Failed,
    FoundShards,
    MemberMessage,
    Note,
    UseCheckpoint,
    Verdict,
)
from elasticdl.control.protocol.profiling import RecordSteps
from elasticdl.control.protocol.psmessages import Model
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, ViewId
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.memberstream import (
    MemberStream,
    StreamClosed,
    StreamEvent,
    StreamOpened,
    StreamReceived,
    StreamRefused,
)
from elasticdl.control.transport.refusals import RefusalLog
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadModel, Cancelled
from elasticdl.files.predictions import mark_of, parts_of
from elasticdl.job.beating import PatientHeart
from elasticdl.job.datafiles import predictions_draft
from elasticdl.job.storagenotes import StorageNotes
from elasticdl.spec import pods
from elasticdl.spec.framework import output_format
from elasticdl.spec.jobspec import PARQUET, JobKind, JobSpec, OnNaN
from elasticdl.spec.machine import cores
from elasticdl.worker.events import Connected, Disconnected, DrainRequested, Event, Exit, News, Received, Tick
from elasticdl.worker.steprecorder import StepRecorder

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

_TICK_SECONDS = 1.0
"""How often unanswered messages are repeated; a lost connection repeats them at once."""
_LEAVE_SECONDS = 5.0
"""How long the main thread may take to end by itself once the member has ended; after that the process goes."""


class WorkerProcess:
    """One life of one worker."""

    def __init__(self, place: Place, name: str, leaving: Callable[[Exit], None]) -> None:
        """`leaving` is called at once when the member ends, while the main thread may still be at work."""
        self._leaving = leaving
        self._place = place
        self._name = name
        self._spec: JobSpec = place.spec()
        self._id = MemberId(secrets.token_hex(16))
        self._lock = threading.Lock()
        self._worker: Callable[[News], None] | None = None
        self._connected = False
        self._draining = False
        self._verdict: Received | None = None
        self._data: Future[Data] = Future()
        self._model: Future[str] = Future()
        """What the job has on parameter servers, as the master says it."""
        self._checkpoint: Future[str] = Future()
        """Manifest of the checkpoint with whose weights the job evaluates or predicts, as the master says it."""
        self._bad_records: BadRecords | None = None
        """Those that built-in readers leave out."""
        self._found: FoundShards | None = None
        self._warning = ""
        """What the job has not been told yet."""
        self._refusals: RefusalLog | None = None
        self._ended = threading.Event()
        # From the first second on: what loads the model may hang, or hold the interpreter's lock for long without that.
        self._heart = PatientHeart(
            Heart(
                place.heart_address,
                self._id,
                place.key(Key.DATA),
                self._spec.heartbeat_seconds,
                place.identity,
            )
        )
        self._storage = StorageNotes(self._send)
        self._recorder = StepRecorder(self._send)
        self._stream = MemberStream(
            place.control_address, place.key(Key.WORKER), name, self._id, self._on_stream, place.identity
        )

    # ------------------------------------------------------------------ events, on other threads

    def _on_stream(self, event: StreamEvent) -> None:
        match event:
            case StreamReceived(Data() as data):
                if not self._data.done():
                    self._data.set_result(data)
            case StreamReceived(Model(catalog)) if not self._model.done():
                self._model.set_result(catalog)
                self._give(Received(Model(catalog)))
            case StreamReceived(UseCheckpoint(manifest)):
                if not self._checkpoint.done():
                    self._checkpoint.set_result(manifest)
            case StreamReceived(RecordSteps() as wanted):
                self._recorder.ask(wanted)
            case StreamReceived(message):
                awaited: tuple[Future[Any], ...] = (self._data, self._model, self._checkpoint)
                for one in awaited if isinstance(message, Verdict) else ():
                    if not one.done():
                        one.set_exception(Cancelled(getattr(message, "reason", "")))
                self._give(Received(message))
            case StreamOpened():
                with self._lock:
                    self._connected = True
                    found = self._found
                if found is not None and not self._data.done():
                    self._stream.send(found)
                self._send_warning()
                self._storage.connected()
                self._give(Connected())
            case StreamClosed():
                with self._lock:
                    self._connected = False
                self._give(Disconnected())
            case StreamRefused(reason):
                _log.error("the master refuses this worker: %s", reason)
                os._exit(1)

    def _give(self, event: News) -> None:
        """Hand an event to the member; before it exists only connections and the job's end matter, and they are made up for."""
        with self._lock:
            worker = self._worker
            if worker is None and isinstance(event, Received) and isinstance(event.message, Verdict):
                self._verdict = event
        if worker is not None:
            worker(event)

    def drain(self) -> None:
        """Ask the member to leave at the next step boundary; a worker that has not joined yet just ends."""
        with self._lock:
            self._draining = True
            worker = self._worker
        if worker is None:
            os._exit(RELEASED)
        worker(DrainRequested())

    def fail(self, reason: str) -> None:
        """End this worker as if the master had said that the job has failed: there is no master any more."""
        self._on_stream(StreamReceived(Failed(reason)))

    # ------------------------------------------------------------------ the main thread

    def run(self) -> int:
        """Prepare, train, and return the process's exit code."""
        from elasticdl.worker.raised import PROGRAM_ERRORS, program_error

        try:
            worker = self._prepare()
        except Cancelled as over:  # the job ended before its data was known
            return self._leave(Exit(RELEASED, str(over)))
        except PROGRAM_ERRORS as error:
            return self._report(program_error(error))
        self._attach(worker.feed)
        ended = worker.run()
        return self._leave(ended)

    def _attach(self, feed: Callable[[News], None]) -> None:
        """Connect the member to what happens; what happened before is delivered now."""
        with self._lock:
            self._worker = feed
            connected, draining, verdict = self._connected, self._draining, self._verdict
        if draining:
            feed(DrainRequested())
        if verdict is not None:
            feed(verdict)
        elif connected:
            feed(Connected())
        threading.Thread(target=self._tick, args=(feed,), name="tick", daemon=True).start()

    def _tick(self, feed: Callable[[News], None]) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            feed(Tick())
            if self._refusals is not None:
                self._refusals.look(time.monotonic())

    def _leave(self, ended: Exit) -> int:
        _log.info("ends with code %d: %s", ended.code, ended.reason)
        self._ended.set()
        self._stream.close()
        return ended.code

    def _report(self, error: Any) -> int:
        """Tell the master why this worker can't start; without an answer it counts as a crash."""
        from elasticdl.worker.allreduce.machine import Member

        member = Member(self._id, self._name, "", _no_schedule())
        ended: Future[Exit] = Future()
        lock = threading.RLock()

        def feed(event: Event) -> None:
            nonlocal member
            with lock:
                member, instructions = member.handle(event)
                for instruction in instructions:
                    if isinstance(instruction, Exit):
                        ended.set_result(instruction)
                    message = getattr(instruction, "message", None)
                    if message is not None:
                        self._stream.send(message)

        feed(error)
        self._attach(feed)
        return self._leave(ended.result())

    def _send(self, message: MemberMessage) -> bool:
        return self._stream.send(message)

    def _prepare(self) -> AllReduceWorker | PsWorker | TaskWorker:
        """Build the worker: model, data, compiled step, data plane."""
        spec, place = self._spec, self._place
        from elasticdl.worker.contract.framework import find_framework

        framework = find_framework(spec)
        form = output_format(spec, framework).name
        framework.start(threads_per_worker(spec))
        reserved = pods.gpus(spec.worker_resource_request, spec.worker_resource_limit)
        self._warn(framework.unused_gpus(reserved))
        user = framework.load(spec)
        readers = self._open_readers(user.custom_data_reader)
        reader, _ = readers
        process = process_name(self._name)
        if spec.num_ps_pods:
            return self._build_ps(
                framework.ps_adapter(user, spec, reader.metadata, process), readers, form, place
            )
        if spec.kind is not JobKind.TRAIN:
            model = framework.trained(user, spec, reader.metadata, self._weights())
            return self._build_tasking(model, reader, user)
        adapter = framework.adapter(user, spec, reader.metadata, process)
        return self._build(adapter, readers, self._schedule(), form, place)

    def _warn(self, text: str) -> None:
        """Tell the job what all its workers would say: the first one as soon as it is connected, the others their logs."""
        if text and not self._name.startswith("worker-0-"):
            _log.warning("%s", text)
        elif text:
            with self._lock:
                self._warning = text
            self._send_warning()

    def _send_warning(self) -> None:
        with self._lock:
            text, self._warning = (self._warning, "") if self._connected else ("", self._warning)
        if text and not self._note(f"warning: {text}"):
            self._warning = text

    def _open_readers(self, custom: Callable[..., Any] | None) -> tuple[Reader, Reader | None]:
        """Return readers of the training data and of what is evaluated, if anything is."""
        from elasticdl.data.plan.order import records_per_task
        from elasticdl.data.readers.custom import open_custom_reader
        from elasticdl.data.readers.reader import BadRecords, check_unchanged, shards_of
        from elasticdl.job.datafiles import open_job_data

        spec = self._spec
        validates = spec.kind is JobKind.TRAIN and bool(spec.validation_data)
        if custom is not None:
            per_task = records_per_task(spec)

            def open_own(origin: str) -> Reader:
                return open_custom_reader(custom, origin, per_task, spec.data_reader_params)

            own = open_own(spec.data)
            other = open_own(spec.validation_data) if validates else None
            with self._lock:
                self._found = FoundShards(shards_of(own), () if other is None else shards_of(other))
            self._stream.send(self._found)
            return own, other
        data = self._data.result()  # the master has indexed the files; this worker then finds the indexes
        bad_records = self._bad_records = BadRecords(spec.max_bad_records, self._tell_bad_record)

        def open_files(origin: str, shards: Sequence[Shard]) -> Reader:
            reader = open_job_data(
                self._place, spec, origin, bad_records, note=self._storage.tell, alive=self._heart.alive
            )
            check_unchanged(reader, shards)
            return reader

        return (
            open_files(spec.data, data.shards),
            open_files(spec.validation_data, data.validation) if validates else None,
        )

    def _tell_bad_record(self, what: str) -> bool:
        return self._stream.send(Note(EventKind.BAD_RECORD, ViewId(0), 0, f"skips {what}"))

    def _note(self, text: str) -> bool:
        return self._stream.send(Note(EventKind.NOTE, ViewId(0), 0, text))

    def _schedule(self) -> Schedule:
        from elasticdl.data.plan.order import schedule_of

        data = self._data.result()
        return schedule_of(self._spec, data.shards, data.validation)

    def _build(
        self,
        adapter: Adapter,
        readers: tuple[Reader, Reader | None],
        schedule: Schedule,
        form: str,
        place: Place,
    ) -> AllReduceWorker:
        """`form` is the name of the output format."""
        from elasticdl._core import Endpoint
        from elasticdl.data.prefetch import ChunkSource
        from elasticdl.worker.allreduce.machine import Member
        from elasticdl.worker.allreduce.runner import AllReduceWorker
        from elasticdl.worker.allreduce.snapshots import Saving
        from elasticdl.worker.auditlog import AuditLog
        from elasticdl.worker.evaluating import prepared
        from elasticdl.worker.settings import AHEAD, LoopSettings

        spec, ledger = self._spec, schedule.ledger
        reader, validation = readers
        first = ledger.task(0, 0)
        adapter.prepare(reader.read(first, ledger.chunk(first, 0).tolist()))
        evaluating = None
        if validation is not None and schedule.evaluation is not None:
            if not hasattr(adapter, "evaluator"):
                raise BadModel(
                    "the framework of this model file does not evaluate; leave --validation_data out"
                )
            evaluating = prepared(adapter.evaluator(validation.metadata), validation, schedule.evaluation)
        key = place.key(Key.DATA)
        endpoint = Endpoint(place.data_address(self._id), self._id, key, place.identity)
        self._refusals = RefusalLog(endpoint, "data plane")
        output = Path(spec.output) if spec.output else None
        snapshots = place.snapshots(spec)
        return AllReduceWorker(
            member=Member(
                self._id,
                self._name,
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
            audit=AuditLog(Path(spec.audit), self._name, self._id, self._note) if spec.audit else None,
            heart=self._heart,
            send=self._send,
            settings=LoopSettings(
                spec.silence_seconds,
                spec.on_nan.value,
                output,
                form,
                snapshots,
                spec.checkpoint_best,
            ),
            leaving=self._leaving,
            recorder=self._recorder,
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

        spec, key = self._spec, place.key(Key.DATA)
        data = self._data.result()
        order = tasks_of(spec, data.shards, data.validation)
        ledger = order.ledger
        reader, validation = readers
        first = ledger.task(0, 0)
        adapter.prepare(reader.read(first, ledger.chunk(first, 0).tolist()))
        if spec.checkpoint_dir_for_init:
            adapter.adopt(read_catalog(self._model.result()))
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
        return PsWorker(
            member=PsMember(self._id, self._name, order, pacing, settings),
            adapter=adapter,
            client=ParameterClient(self._name, key, adapter.catalog.core(), place.identity),
            chunks=ChunkSource(reader, ledger, adapter.convert, AHEAD),
            evaluating=evaluating,
            audit=PsAuditLog(Path(spec.audit), self._name, self._id, self._note) if spec.audit else None,
            heart=self._heart,
            send=self._send,
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
            recorder=self._recorder,
        )

    def _weights(self) -> Weights:
        from elasticdl.spec.edge import check_trained_model
        from elasticdl.worker.tasking.weights import weights_of_checkpoint

        if self._spec.trained_model:
            check_trained_model(self._spec.trained_model)  # in pods nobody has before
            return Path(self._spec.trained_model)
        return weights_of_checkpoint(Path(self._checkpoint.result()), self._place.path / "rows")

    def _build_tasking(self, model: TrainedModel, reader: Reader, user: UserModel) -> TaskWorker:
        from elasticdl.data.plan.evaluation import EvaluationPlan
        from elasticdl.data.plan.order import pass_of
        from elasticdl.worker.evaluating import prepared
        from elasticdl.worker.tasking.machine import TaskMember
        from elasticdl.worker.tasking.runner import EvaluationDoer, TaskDoer, TaskWorker

        spec = self._spec
        plan = pass_of(spec, self._data.result().shards)
        metrics = ""
        doer: TaskDoer
        if isinstance(plan, EvaluationPlan):
            first = plan.task_by_id(0, 0)
            model.prepare(reader.read(first, plan.chunk(first, 0).tolist()))
            evaluating = prepared(model.evaluator(reader.metadata), reader, plan)
            metrics, doer = evaluating.metrics, EvaluationDoer(evaluating)
        else:
            doer = self._predicting(model, reader, user, plan)
        member = TaskMember(self._id, self._name, metrics)
        return TaskWorker(member, doer, self._heart, self._send, self._leaving)

    def _predicting(self, model: TrainedModel, reader: Reader, user: UserModel, plan: OnePass) -> Predicting:
        from elasticdl.worker.tasking.predicting import Predicting, Processing, Target

        spec = self._spec
        processing = None
        if user.prediction_outputs_processor is not None:
            processing = Processing(user.prediction_outputs_processor(), process_name(self._name).index)
        key = self._place.key(Key.DATA)
        draft = predictions_draft(self._place, spec, key)
        directory = None if draft is None else parts_of(draft)
        load = None
        if (table := spec.output_table) is not None:
            from elasticdl.data.readers.patience import Patience
            from elasticdl.data.writers.tableload import TableLoad

            patience = Patience(spec.storage_seconds, self._storage.tell, self._heart.alive)
            load = TableLoad(table, mark_of(key), patience)
        target = Target(directory, spec.output_format or PARQUET, spec.prediction_keep, load)
        return Predicting(model, reader, plan, target, self._bad_records, processing)


def threads_per_worker(spec: JobSpec) -> int:
    """Return the threads with which each worker computes: fixed for the job, because results depend on them in their last bits.

    What a trained model gives must not depend on the number of workers either.
    """
    if spec.kind is not JobKind.TRAIN:
        return spec.threads_per_worker or (cores() if spec.on_kubernetes else 1)
    return spec.threads_per_worker or max(1, cores() // spec.num_workers.maximum)


def _no_schedule() -> Schedule:
    """Return a schedule for a member that will never train: it only has an error to report."""
    from elasticdl.data.plan.ledger import Ledger
    from elasticdl.data.plan.schedule import Schedule

    return Schedule(Ledger([Shard("none", 0, 1)], 1, 1, 0, False), 1, 0)


def main() -> int:
    """Run the worker that the environment names."""
    forbid_core_dumps()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before any thread: all inherit it
    watch_parent()
    place: Place = podplace.own_pod() if podplace.POD_ENVIRONMENT in os.environ else own_place()
    spec = place.spec()
    logging.basicConfig(level=spec.log_level.value.upper(), format="%(asctime)s %(levelname)s %(message)s")

    def leaving(ended: Exit) -> None:
        timer = threading.Timer(_LEAVE_SECONDS, os._exit, (ended.code,))
        timer.daemon = True
        timer.start()

    process = WorkerProcess(place, os.environ[PROCESS_ENVIRONMENT], leaving)

    def await_term() -> None:
        signal.sigwait({signal.SIGTERM})
        process.drain()

    threading.Thread(target=await_term, name="sigterm", daemon=True).start()
    code = process.run()
    from elasticdl.worker.raised import remove_generated

    remove_generated()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # threads of the framework and of the user's program must not hold up an end that the master awaits


if __name__ == "__main__":
    main()
