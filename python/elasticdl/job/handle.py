"""A job as people hold it in Python: started without waiting, or found again by its name.

It decides nothing and keeps nothing: each question goes to where the job is, by a backend (`backends.py`). So it may be dropped at any
time, and any number of programs may hold one job.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.control.protocol.status import JobStatus
from elasticdl.errors import BadSetting, ElasticDLError
from elasticdl.job import display
from elasticdl.job.submit import done_or_raise

if TYPE_CHECKING:
    from elasticdl.job.backends import Backend
    from elasticdl.job.display import Display

_CODES = {"finished": 0, "interrupted": 130}


@dataclass(frozen=True, slots=True)
class History:
    """Metrics of a job by step.

    Attributes:
        history: the values of each metric by its name, as in Keras' `History`: `loss` of steps, and those of evaluations
            (`val_loss`, …), with six digits. A long curve has its lowest and highest points, 2,000 at most.
        steps: the steps that these values belong to, by the same names.
    """

    history: dict[str, list[float]]
    steps: dict[str, list[int]]


class Job:
    """A job that runs, or has ended; `train(…, wait=False)` and `elasticdl.job(name)` return it.

    It belongs to nobody: the job continues when the program that holds it ends, and any program of the same user may hold it. All
    methods raise `MasterAway` if the job's master, or the cluster, does not answer in time.
    """

    def __init__(self, backend: Backend) -> None:
        """Use `train(…, wait=False)` or `elasticdl.job(name)`."""
        self._backend = backend

    @property
    def name(self) -> str:
        """Return the job's unique name."""
        return self._backend.name

    @property
    def namespace(self) -> str:
        """Return the namespace of a job on Kubernetes; empty if it is on this machine."""
        return self._backend.namespace

    def progress(self) -> JobStatus:
        """Return how the job stands now, or how it ended."""
        return self._backend.status()

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last evaluation by name; empty before there is one."""
        summary = self._backend.summary()
        return dict((summary or {}).get("metrics") or self._backend.recording().last_metrics())

    @property
    def history(self) -> History:
        """Return metrics by step so far; those of a running job may lack the last five seconds."""
        curves = self._backend.recording().metric_points()
        return History(
            {name: [point.value for point in points] for name, points in curves.items()},
            {name: [point.step for point in points] for name, points in curves.items()},
        )

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the job's end, and return its summary; meanwhile its progress is shown as by `train`.

        Ctrl-C ends the waiting and not the job.

        Args:
            timeout: seconds after which TimeoutError is raised, and the job continues; None for no limit.

        Raises JobFailed, BadInput or Interrupted if the job ended so; TimeoutError.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        summary = self._backend.wait(self._open_display, until)
        if summary is None:
            raise TimeoutError(f"the job {self.name} has not ended within {timeout:g} s; it continues")
        code = summary.get("exit_code", _CODES.get(str(summary.get("status")), 1))
        if code:
            display.print_log_end(summary)
            display.print_traceback(summary)
        return done_or_raise(dict(summary), code, f"elasticdl logs {self._words()}")

    def stop(self) -> None:
        """Ask the job to end at its next step, and return at once; what it has trained is written. One that has ended stays as it is."""
        self._backend.stop("stopped by Job.stop()")

    def scale(self, num_workers: int | None = None, num_ps_pods: int | None = None) -> None:
        """Ask for another number of workers or parameter servers; None: as many as now.

        Raises BadInput if the numbers are refused, or the job has ended.
        """
        if num_workers is None and num_ps_pods is None:
            raise BadSetting("scale() takes num_workers=, num_ps_pods= or both")
        self._backend.scale(num_workers, num_ps_pods)

    def profile(self, steps: int = 5, output: str | os.PathLike[str] | None = None) -> Path:
        """Record what the next steps of each worker consist of; wait for them, and return the file in which they are.

        It is in the trace event format of Chrome, which https://ui.perfetto.dev opens. A worker that has recorded fewer steps is named
        in a warning, and in the file.

        Args:
            steps: of each worker, 1 to 1,000.
            output: the file; None for `NAME-profile.json` in this directory.

        Raises BadInput if there is nothing to record: the job has ended, trains nothing, or is on Kubernetes; JobFailed if it ends before
        any step does, and Unwritable.
        """
        from elasticdl.job.profile import default_output

        target = default_output(self.name) if output is None else Path(output)
        for text in self._backend.profile(steps, target).missing:
            warnings.warn(text, stacklevel=2)
        return target

    def logs(self, process: str | None = None, lines: int = 200) -> list[str]:
        """Return the last lines of the logs of the job's processes, each with the name of its process, merged by time.

        Args:
            process: only processes whose names begin so: `master`, `worker`, `worker-3`, `worker-3-2`, `ps`.
            lines: how many at most.

        Raises BadInput if there is no such process.
        """
        if lines < 1:
            raise BadSetting(f"lines= is at least 1, received {lines}")
        return self._backend.lines((process or "").replace("_", "-"), lines)

    @property
    def page(self) -> str:
        """Return the address of the job's page, which has a token in it: who has the address may read the page.

        The master of a running job on this machine serves it, and is waited for until it does. That of any other job is served by this
        program until it ends.
        """
        return self._backend.page()

    def __repr__(self) -> str:
        """Return its name; nobody is asked for it."""
        where = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"elasticdl.job({self.name!r}{where})"

    def _repr_html_(self) -> str:
        """Return how the job stands, for notebooks."""
        from elasticdl.job.card import card, problem

        try:
            return card(self.progress(), self._backend.recording())
        except (ElasticDLError, OSError) as error:
            return problem(self.name, str(error))

    def _words(self) -> str:
        return f"{self.name} --namespace={self.namespace}" if self.namespace else self.name

    def _open_display(self) -> Display:
        started = self._backend.submitted_at()
        if display.in_notebook():
            from elasticdl.job.notebook import NotebookDisplay

            return NotebookDisplay(self._backend.recording(), started)
        return display.open_display(started, self._backend.spec().log_loss_steps)


def find(name: str, namespace: str = "") -> Job:
    """Return a job of this user, running or ended, by its name.

    Args:
        name: its unique name, or its `job_name`: then the newest of these, running ones first.
        namespace: where it is on Kubernetes; empty: on this machine.

    Raises BadInput if there is none, with the nearest name.
    """
    from elasticdl.job.backends import find_local, find_pods

    return Job(find_pods(name, namespace) if namespace else find_local(name))
