"""Which session a program has: that of the job which has started it, or one of its own."""

from __future__ import annotations

import os

from elasticdl.cluster.local.processes import PROCESS_ENVIRONMENT
from elasticdl.errors import BadSetting
from elasticdl.worker.contract.loop import Session
from elasticdl.worker.loop.ending import at_program_end
from elasticdl.worker.loop.local import LocalSession

_OTHERS = ("RANK", "WORLD_SIZE")
"""What torchrun, and operators that start programs as it does, put into the environment."""
_joined = False


def start() -> Session:
    """Return this process's session. Raises BadSetting for a second one in a job, or if another launcher has made a group."""
    global _joined
    if _joined:
        raise BadSetting("init() was called before: a program takes part in its job once")
    if PROCESS_ENVIRONMENT in os.environ:
        from elasticdl.worker.loop.joining import join

        _joined = True
        return join()
    if set_there := [f"{name}={os.environ[name]}" for name in _OTHERS if name in os.environ]:
        raise BadSetting(
            f"init(): the environment has {' and '.join(set_there)}, as torchrun sets it; start the program with `elasticdl run "
            "--num_workers=2 -- python train.py`, or alone with `python train.py`. If the platform sets them, unset them"
        )
    session = LocalSession()
    at_program_end(session)
    return session
