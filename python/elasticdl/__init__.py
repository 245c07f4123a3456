"""ElasticDL: deep learning that survives the loss and the gain of workers at any moment.

What people who write Python use: `train`, `evaluate`, `predict`, which run a job or return a `Job`, `job`, which finds one again, `Mode`
(for `feed`), `analyze`, which counts what the columns of data have, `sql`, which runs statements that train and use models, `init`, with
which a program that has a training loop of its own takes part in a job, `shards`, with which one does that processes records once, and the
errors in `elasticdl.errors`.
Importing the package imports nothing else, because every process of a job does it on the way to its first step.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from elasticdl.control.protocol.status import JobStatus, WorkerStatus
    from elasticdl.job.analyze import analyze
    from elasticdl.job.handle import History, Job
    from elasticdl.job.handle import find as job
    from elasticdl.job.submit import evaluate, predict, train
    from elasticdl.query.run import sql
    from elasticdl.spec.jobspec import Mode
    from elasticdl.worker.loop.plain import init
    from elasticdl.worker.shards.face import shards

__all__ = [
    "History",
    "Job",
    "JobStatus",
    "Mode",
    "WorkerStatus",
    "analyze",
    "evaluate",
    "init",
    "job",
    "predict",
    "shards",
    "sql",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    match name:
        case "evaluate" | "predict" | "train":
            from elasticdl.job import submit

            return getattr(submit, name)
        case "analyze":
            from elasticdl.job.analyze import analyze

            return analyze
        case "job":
            from importlib import import_module

            return import_module("elasticdl.job")  # which can be called
        case "History" | "Job":
            from elasticdl.job import handle

            return getattr(handle, name)
        case "JobStatus" | "WorkerStatus":
            from elasticdl.control.protocol import status

            return getattr(status, name)
        case "Mode":
            from elasticdl.spec.jobspec import Mode

            return Mode
        case "init":
            from elasticdl.worker.loop.plain import init

            return init
        case "shards":
            from elasticdl.worker.shards.face import shards

            return shards
        case "sql":
            from elasticdl.query import needs

            needs.check()
            from elasticdl.query.run import sql

            return sql
        case "load_ipython_extension":  # `%load_ext elasticdl`
            from elasticdl.query import needs

            needs.check()
            from elasticdl.query import magic

            return magic.load_ipython_extension
        case "__version__":
            from importlib.metadata import version

            return version("elasticdl")
        case _:
            raise AttributeError(f"module 'elasticdl' has no attribute {name!r}")
