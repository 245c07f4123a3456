"""Which session a program has: that of the job which has started it, or one of its own."""

from __future__ import annotations

import os

from elasticdl.cluster.local.processes import PROCESS_ENVIRONMENT
from elasticdl.errors import BadInput
from elasticdl.worker.contract.loop import Session

_started = False


def start() -> Session:
    """Return this process's session; called once. Raises BadInput if it is called again, or another launcher has made a group."""
    global _started
    if _started:
        raise BadInput("init() was called before: a program takes part in one job")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise BadInput(
            f"init(): torchrun or another launcher has made this process number {os.environ.get('RANK', '?')} of a group "
            f"(WORLD_SIZE={os.environ['WORLD_SIZE']}); start the program with `elasticdl run --num_workers=N -- python train.py`, or alone"
        )
    _started = True
    if PROCESS_ENVIRONMENT in os.environ:
        from elasticdl.worker.loop.joining import join

        return join()
    from elasticdl.worker.loop.local import LocalSession

    return LocalSession()
