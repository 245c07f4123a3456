"""Run a job on Kubernetes as a person does: submit it, watch it, and decide at Ctrl-C whether it ends or goes on without you."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elasticdl.cluster.api import connect
from elasticdl.errors import BadModel, BadSetting
from elasticdl.job import podjob, survey
from elasticdl.job.display import Display, open_display
from elasticdl.job.doctor import Finding, Level
from elasticdl.job.podjob import PodJob, Seen
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.modelfile import check_model_file


def run(spec: JobSpec) -> Mapping[str, Any]:
    """Submit a job and watch it to its end; return its summary, with `exit_code`. Raises BadInput if nothing was submitted."""
    began = time.time()
    job = submit(spec)
    display = open_display(began, spec.log_loss_steps)
    display.notice(f"{job.name} has been submitted to the namespace {spec.namespace}")
    try:
        summary = _watch(job, display, spec)
    finally:
        display.close()
    if spec.summary:
        path = Path(spec.summary)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def submit(spec: JobSpec) -> PodJob:
    """Check the model file, and create the job's objects. Raises BadInput."""
    check_model(spec)
    return podjob.submit(spec)


def check_model(spec: JobSpec) -> None:
    """Check the model file, if it is here. Raises BadInput."""
    if Path(spec.model_zoo).is_dir():
        check_model_file(spec)
    elif not spec.model_zoo.startswith("/"):
        raise BadModel(
            f"--model_zoo: {spec.model_zoo!r} is not a directory here; name one, or the absolute path of one that the image has"
        )


def examine(spec: JobSpec) -> Iterator[Finding]:
    """Check a job as far as can be without submitting it. Raises BadInput for what no cluster is needed to know, ApiError, Unreachable."""
    if not spec.on_kubernetes:
        raise BadSetting("doctor checks what a job on Kubernetes needs; --image_name makes it one")
    check_model(spec)
    spec = podjob.prepare(spec)
    podjob.packed_zoo(spec)
    yield Finding(Level.OK, "the settings and the model file")
    yield from survey.examine(spec, connect(spec.namespace))


def stop(job: PodJob) -> str:
    """End a job in order, wait for it, and remove everything that it made; return a sentence.

    A job whose master has not run yet has nothing to end in order.
    """
    seen = job.look()
    if seen.summary is None and seen.status is not None:
        job.ask_to_stop("stopped by `elasticdl stop`")
        podjob.watch(job, lambda seen: None)
        # Whoever else watches reads how the job ended from what is removed now, and nobody knows who does.
        time.sleep(4 * podjob.LOOK_SECONDS)
    job.remove()
    return f"{job.name} has ended, and everything that it made in the cluster is removed"


def _watch(job: PodJob, display: Display, spec: JobSpec) -> Mapping[str, Any]:
    waits_for = ""

    def show(seen: Seen) -> None:
        nonlocal waits_for
        if seen.waits_for and seen.waits_for != waits_for:
            waits_for = seen.waits_for
            display.notice(waits_for)
        for event in seen.events:
            display.event(event)
        if seen.status is not None:
            display.status(seen.status)

    asked = False
    while True:
        try:
            return podjob.watch(job, show)
        except KeyboardInterrupt:
            if not asked and _wants_stop(job, display):
                asked = True
                job.ask_to_stop("interrupt")
                display.notice(
                    "the job ends at the next step and writes what there is; once more to leave it alone"
                )
                continue
            return {
                "job": job.name,
                "status": "detached",
                "reason": f"the job goes on; `elasticdl status {job.name} --namespace={spec.namespace}` shows it",
                "exit_code": 130,
            }


def _wants_stop(job: PodJob, display: Display) -> bool:
    """Ask the person; without a terminal Ctrl-C means an end, as for a local job."""
    if not sys.stdin.isatty():
        return True
    try:
        answer = display.ask(f"\nstop the job {job.name}, or leave it running and detach? [s/d]")
        return answer.lower().startswith("s")
    except KeyboardInterrupt:
        return False
