"""The entry point of a worker's pod that runs the user's own program: it becomes that program, in the model zoo if the job has one.

On one machine the launcher starts the program itself.
"""

from __future__ import annotations

import os
import sys

from elasticdl.cluster.kubernetes import podplace
from elasticdl.spec.machine import threads_per_worker

NOT_FOUND = 127
"""Exit code of a command that can't be run, as of a shell."""


def main() -> int:
    """Become the program of the job that the environment names; return an exit code if it can't be run."""
    spec = podplace.own_pod().spec()  # unpacks the model zoo
    os.environ["OMP_NUM_THREADS"] = str(threads_per_worker(spec))
    where = "in the image"
    try:
        if spec.model_zoo:
            os.chdir(spec.model_zoo)
            where = f"in {spec.model_zoo} and the image"
        os.execvp(spec.job_command[0], spec.job_command)
    except OSError as error:
        print(
            f"the command {spec.job_command[0]!r} can't be run {where}: {error.strerror}",
            file=sys.stderr,
            flush=True,
        )
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
