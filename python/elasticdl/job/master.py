"""The entry point of a master process.

Its order is that of the way to the first step: workers, which take seconds to import a framework, are launched before anything that only
the master needs is imported. Only the volumes of a job in pods, which nobody could look at before, are looked at first. After a restart the
launcher's history comes first, so that no worker is started twice.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.cluster import Cluster, ClusterEvent, Role, ScaleAsked, StopAsked, process_name
from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.local.localcluster import LocalCluster
from elasticdl.cluster.local.parentdeath import watch_parent
from elasticdl.cluster.local.place import JobPlace, Place, own_place
from elasticdl.control.transport.coredumps import forbid_core_dumps
from elasticdl.control.transport.keys import Key, derive
from elasticdl.errors import BadInput, ElasticDLError, JournalConflict
from elasticdl.job.datafiles import (
    check_classes,
    check_columns,
    leave_mark,
    open_job_data,
    predictions_draft,
    remove_tables,
)
from elasticdl.job.page import MasterFigures, MasterPage
from elasticdl.master.core.events import DataFound
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.core.journal import REPLACED, Journal, Pages
from elasticdl.master.core.records import Record, read_journal
from elasticdl.master.processes import replicas as replicas
from elasticdl.master.reporting.curvekeeping import CurveKeeper
from elasticdl.master.reporting.statusstore import FileStatusStore, StatusStore
from elasticdl.page.recording import Recording
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.spec.machine import ask_for_descriptors, threads_per_worker
from elasticdl.spec.pods import amount

if TYPE_CHECKING:
    from elasticdl.master.running.context import Monitor
    from elasticdl.master.running.reporter import Observer
    from elasticdl.master.running.runner import Runner

BROKEN = 70
"""Exit code of a master that an error of its own has ended (EX_SOFTWARE of sysexits.h)."""
_COMPACT_AT = 200
"""Records from which on a starting master compacts the journal; reading them takes some milliseconds."""
_HISTORY_SECONDS = 0.05
"""The launcher sends its history at once; this is for a machine under load."""

_DESCRIPTORS = 8192
"""Descriptors of a master in a pod: each member's connections take four, and some nodes allow 1,024 unless one asks for more."""


def make_runner(
    place: Place,
    spec: JobSpec,
    cluster: Cluster,
    pages: Pages,
    store: StatusStore,
    show: Callable[[Recording], Observer] | None = None,
) -> Runner[Any]:
    """Return the job's master, ready to run; the workers of a new job have been launched then.

    Args:
        place: the job's place.
        spec: its settings.
        cluster: where its workers live.
        pages: where its journal is kept.
        store: where it keeps what people see.
        show: begins to show what is seen of the job, and hears of it from then on.
    """
    journal = Journal(pages)
    journal.tidy()
    read = journal.read()
    if len(read[0]) > _COMPACT_AT:
        read = journal.compact(read[1])
    if spec.on_kubernetes and read[1] == 0:
        _check_volumes(spec)
    forces, history = _replica_sets(spec, cluster, read)

    from elasticdl.master.running.context import JobContext, Past
    from elasticdl.master.running.runner import Runner

    recording = Recording(place.submitted_at)
    observers: list[Observer] = [recording, CurveKeeper(recording, store)]
    if spec.tensorboard_log_dir:
        from elasticdl.page.eventfiles import EventFiles

        observers.append(EventFiles(Path(spec.tensorboard_log_dir)))
    if show is not None:
        observers.append(show(recording))
    job = JobContext(
        place,
        spec,
        cluster,
        journal,
        store,
        monitor=lambda: _monitor(place),
        open_data=lambda progress, note: open_data(place, spec, progress, note),
        facts=lambda: _facts(spec),
        observers=observers,
    )
    told = store.recall() if read[1] else []
    past = Past(*read, forces, history, told)
    snapshots = place.snapshots(spec)
    if spec.num_ps_pods:
        from elasticdl.master.running.ps import PsStrategy

        return Runner(job, past, PsStrategy(spec, place.name, snapshots, past))
    if spec.kind is not JobKind.TRAIN:
        from elasticdl.master.running.tasking import TaskStrategy

        draft = predictions_draft(place, spec, derive(place.token(), Key.DATA))
        return Runner(job, past, TaskStrategy(spec, place.name, draft, past))
    from elasticdl.master.running.allreduce import AllReduceStrategy

    return Runner(job, past, AllReduceStrategy(spec, place.name, snapshots, past))


def open_data(
    place: Place,
    spec: JobSpec,
    progress: Callable[[int, int], None],
    note: Callable[[str, bool], None],
) -> DataFound | None:
    """Index the data and say what it is; None if the user's program has a reader of its own, which only workers run.

    In pods it is known only now whether the table to which predictions go can be made.
    """
    from elasticdl.data.readers.reader import shards_of
    from elasticdl.spec.modelfile import check_model_file

    if spec.on_kubernetes and (table := spec.output_table) is not None:
        from elasticdl.data.readers.patience import Patience
        from elasticdl.data.writers.tableload import check

        check(table, Patience(spec.storage_seconds, note))
    if spec.job_command or check_model_file(spec).custom_reader:
        return None
    main = open_job_data(place, spec, spec.data, progress=progress, note=note)
    if spec.kind is not JobKind.TRAIN or not spec.validation_data:
        return DataFound(shards_of(main), ())
    validation = open_job_data(place, spec, spec.validation_data, progress=progress, note=note)
    check_columns(main, validation)
    check_classes(main, validation)
    return DataFound(shards_of(main), shards_of(validation))


def _check_volumes(spec: JobSpec) -> None:
    """Check what could not be seen at submission, before anything is launched; a later master finds what the job itself has written."""
    from elasticdl.spec.edge import check_volumes
    from elasticdl.spec.modelfile import check_model_file

    if spec.job_command:  # what its program writes may be one file or a directory
        check_volumes(spec, custom_reader=False, directory=Path(spec.output).is_dir())
        return
    model = check_model_file(spec)
    check_volumes(spec, custom_reader=model.custom_reader, directory=not model.format.suffix)


def _replica_sets(
    spec: JobSpec, cluster: Cluster, read: tuple[tuple[Record, ...], int]
) -> tuple[list[replicas.ReplicaSet], list[ClusterEvent]]:
    """Launch the processes of a new job; of an old one, find out what there is. Workers come first."""
    most_memory = int(amount(spec.oom_memory_limit)) if spec.oom_memory_limit else 0
    limit = spec.relaunch_on_worker_failure
    forces = [replicas.ReplicaSet(spec.num_workers.maximum, limit, most_memory=most_memory)]
    if spec.num_ps_pods:
        forces.append(replicas.ReplicaSet(spec.num_ps_pods, limit, Role.PS))
    if read[1] == 0:
        # Without room for servers nothing is trained, so on a cluster that is nearly full workers come after them.
        launched = [_launch(cluster, force) for force in reversed(forces)]
        return launched[::-1], []
    said = read_journal(*read)
    members = [] if said.view is None else [peer.name for peer in said.view.members]
    members += [server.name for server in said.servers.values()]
    cluster.expect(map(process_name, members))
    history: list[ClusterEvent] = []
    while events := cluster.events(_HISTORY_SECONDS):
        history += events
    forces[0] = replace(
        forces[0],
        wanted=spec.num_workers.maximum if said.wanted is None else said.wanted,
        ran=said.has_begun,
        ending=said.stopping is not None or (said.view is not None and said.view.final),
        stopping=said.stopping is not None,
    )
    if spec.num_ps_pods:
        servers = spec.num_ps_pods if said.wanted_servers is None else said.wanted_servers
        forces[1] = replace(forces[1], wanted=servers)
    processes = [event for event in history if not isinstance(event, (StopAsked, ScaleAsked))]
    # The first lives are launched before anything is reported, so all that was reported of a life counts.
    lives = [process_name(name) for name in (*members, *(error.worker for error in said.errors))]
    lives += said.launched.values()
    over = said.terminal is not None
    return [replicas.recall(replace(force, over=over), processes, lives) for force in forces], history


def _launch(cluster: Cluster, force: replicas.ReplicaSet) -> replicas.ReplicaSet:
    force, instructions, _ = replicas.decide(time.monotonic(), force, replicas.Tick())
    for instruction in instructions:
        if isinstance(instruction, replicas.Launch):
            cluster.launch(instruction.name, instruction.memory)
    return force


def _facts(spec: JobSpec) -> dict[str, Any]:
    return {"threads_per_worker": threads_per_worker(spec)}


def _monitor(place: Place) -> Monitor:
    from elasticdl._core import HeartMonitor

    return HeartMonitor(place.heart_address, derive(place.token(), Key.DATA), place.identity)


def _refuse(place: Place, store: StatusStore, error: ElasticDLError) -> int:
    """Say in the summary why this master can't begin; nothing else was touched."""
    code = 2 if isinstance(error, BadInput) else 1
    store.conclude({"job": place.name, "status": "failed", "reason": str(error), "exit_code": code})
    return code


def _run(
    place: Place,
    spec: JobSpec,
    cluster: Cluster,
    pages: Pages,
    store: StatusStore,
    show: Callable[[Recording], Observer] | None = None,
) -> int:
    try:
        code = make_runner(place, spec, cluster, pages, store, show).run()
    except JournalConflict as error:
        logging.warning("this master is replaced: %s", error)
        return REPLACED
    except ElasticDLError as error:
        logging.error("%s", error)
        return _refuse(place, store, error)
    except Exception:
        # Not the job's end: the master is started again, and the journal is all that it needs.
        traceback.print_exc()
        return BROKEN
    remove_tables(place, spec)
    return code


def _abandon(place: JobPlace) -> None:
    """Do what the launcher does at the end of a job, but for its unfinished files: other processes may still write them."""
    with suppress(OSError, BadInput):
        leave_mark(place)
    place.close()


def _run_local() -> int:
    place = own_place()
    watch_parent(lambda: _abandon(place))
    spec = place.spec()
    _log_from(spec)
    cluster = LocalCluster(place.launcher_address, place.token())
    return _run(
        place,
        spec,
        cluster,
        FilePages(place.journal),
        FileStatusStore(place),
        lambda recording: MasterPage(place, spec, recording),
    )


def _run_in_pod() -> int:
    from elasticdl.job.pod import AGAIN_SECONDS, MasterPod

    ask_for_descriptors(_DESCRIPTORS)
    try:
        place = podplace.own_pod()
        spec = place.spec()
        _log_from(spec)
        pod = MasterPod(place, spec)
    except Exception as error:
        # What the job is can't be read, so none of its objects can be told; who watches sees the last line.
        if not isinstance(error, ElasticDLError):
            traceback.print_exc()
        print(error, file=sys.stderr, flush=True)
        time.sleep(AGAIN_SECONDS)
        return BROKEN
    show = (lambda recording: MasterFigures(place, spec, recording)) if spec.metrics_port else None
    return pod.finish(_run(place, spec, pod.cluster, pod.pages, pod.store, show))


def _log_from(spec: JobSpec) -> None:
    logging.basicConfig(level=spec.log_level.value.upper(), format="%(asctime)s %(levelname)s %(message)s")


def _break(failed: threading.ExceptHookArgs) -> None:
    """End a master of which a thread has ended by an error of its own: the next one has all threads."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(BROKEN)


def main() -> int:
    """Run the master that the environment names."""
    forbid_core_dumps()
    threading.excepthook = _break
    code = _run_in_pod() if podplace.POD_ENVIRONMENT in os.environ else _run_local()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for members or data must not hold up the end


if __name__ == "__main__":
    main()
