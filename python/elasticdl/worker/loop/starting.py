"""Which session a program has: that of the job which has started it, or one of its own."""

from __future__ import annotations

import os

from elasticdl.cluster.local.place import PROCESS_ENVIRONMENT
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobKind
from elasticdl.worker.contract.loop import Session
from elasticdl.worker.loop.ending import at_program_end
from elasticdl.worker.loop.local import LocalSession

_OTHERS = ("RANK", "WORLD_SIZE")
"""What torchrun, and operators that start programs as it does, put into the environment."""
_joined = ""
"""How this process has taken part in its job."""


def in_job(call: str) -> bool:
    """Tell whether a job has started this process, which takes part in it by this call. Raises BadSetting if it has before."""
    global _joined
    if _joined:
        before = "before" if _joined == call else f"before {call}"
        raise BadSetting(f"{_joined} was called {before}: a program takes part in its job once")
    if PROCESS_ENVIRONMENT not in os.environ:
        return False
    _joined = call
    return True


def start() -> Session:
    """Return this process's session. Raises BadSetting for a second one in a job, or if another launcher has made a group."""
    if in_job("init()"):
        from elasticdl.worker.loop.joining import join
        from elasticdl.worker.loop.session import JobSession

        return join(JobKind.TRAIN, JobSession)
    if set_there := [f"{name}={os.environ[name]}" for name in _OTHERS if name in os.environ]:
        raise BadSetting(
            f"init(): the environment has {' and '.join(set_there)}, as torchrun sets it; start the program with `elasticdl run "
            "--num_workers=2 -- python train.py`, or alone with `python train.py`. If the platform sets them, unset them"
        )
    session = LocalSession()
    at_program_end(session)
    return session
