"""The entry point of a master process.

Its order is that of the way to the first step: workers, which take seconds to import a framework, are launched before anything that only
the master needs is imported. After a restart the launcher's history comes first, so that no worker is started twice.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.cluster import Cluster, ProcessEvent
from elasticdl.cluster.lifeline import watch_lifeline
from elasticdl.cluster.local import LocalCluster
from elasticdl.data.shard import Shard
from elasticdl.errors import BadInput, ElasticDLError
from elasticdl.master import relaunch
from elasticdl.master.journal import Journal
from elasticdl.master.records import Record, read_journal
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.place import JobPlace, own_place

if TYPE_CHECKING:
    from elasticdl.master.shell import Monitor, Shell

_COMPACT_AT = 200
"""Records from which on a starting master compacts the journal; reading them takes some milliseconds."""
_HISTORY_SECONDS = 0.05
"""The launcher sends its history at once; this is for a machine under load."""


def make_shell(place: JobPlace, spec: JobSpec, cluster: Cluster) -> Shell:
    """Return the job's master, ready to run; the workers of a new job have been launched then."""
    journal = Journal(place.journal)
    journal.tidy()
    read = journal.read()
    if len(read[0]) > _COMPACT_AT:
        read = journal.compact(read[1])
    force, history = _workforce(spec, cluster, read)

    from elasticdl.master.shell import Shell

    return Shell(
        place,
        spec,
        cluster,
        journal,
        read,
        force,
        history,
        monitor=lambda: _monitor(place),
        open_data=lambda progress: open_data(place, spec, progress),
        facts=lambda: _facts(spec),
    )


def open_data(
    place: JobPlace, spec: JobSpec, progress: Callable[[int, int], None]
) -> tuple[Shard, ...] | None:
    """Index the training data and return its shards; None if the model file has a reader of its own, which only workers run."""
    from elasticdl.data.reader import shards_of
    from elasticdl.data.recordfiles import open_reader
    from elasticdl.spec.modelfile import check_model_file

    if check_model_file(spec).custom_reader:
        return None
    return shards_of(
        open_reader(spec.training_data, spec.data_reader_params, place.path / "data", None, progress)
    )


def _workforce(
    spec: JobSpec, cluster: Cluster, read: tuple[tuple[Record, ...], int]
) -> tuple[relaunch.Workforce, list[ProcessEvent]]:
    """Launch the workers of a new job; of an old one, find out what there is."""
    if read[1] == 0:
        force = relaunch.Workforce(spec.num_workers.maximum, spec.relaunch_on_worker_failure)
        force, instructions, _ = relaunch.decide(time.monotonic(), force, relaunch.Tick())
        for instruction in instructions:
            if isinstance(instruction, relaunch.Launch):
                cluster.launch(instruction.name)
        return force, []
    history: list[ProcessEvent] = []
    while events := cluster.events(_HISTORY_SECONDS):
        history += events
    said = read_journal(*read)
    force = relaunch.Workforce(
        wanted=spec.num_workers.maximum if said.wanted is None else said.wanted,
        limit=spec.relaunch_on_worker_failure,
        ending=said.stopping is not None or (said.view is not None and said.view.final),
        over=said.terminal is not None,
    )
    return relaunch.recall(force, history), history


def _facts(spec: JobSpec) -> dict[str, Any]:
    from elasticdl.job.worker import threads_per_worker

    return {"threads_per_worker": threads_per_worker(spec)}


def _monitor(place: JobPlace) -> Monitor:
    from elasticdl._core import HeartMonitor

    return HeartMonitor(place.heart_address, place.token())


def _refuse(place: JobPlace, error: ElasticDLError) -> int:
    """Say in the summary why this master can't begin; nothing else was touched."""
    code = 2 if isinstance(error, BadInput) else 1
    body = {"job": place.name, "status": "failed", "reason": str(error)}
    place.summary_path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return code


def main() -> int:
    """Run the master that the environment names."""
    place = own_place()
    watch_lifeline(place.close)
    spec = place.spec()
    logging.basicConfig(level=spec.log_level.value.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        code = make_shell(place, spec, LocalCluster(place.launcher_address, place.token())).run()
    except ElasticDLError as error:
        logging.error("%s", error)
        code = _refuse(place, error)
    except Exception:
        # Not the job's end: the launcher starts the master again, and the journal is all that it needs.
        traceback.print_exc()
        code = 75
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for members or data must not hold up the end


if __name__ == "__main__":
    main()
