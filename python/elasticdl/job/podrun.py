"""Run a job on Kubernetes as a person does: submit it, watch it, and decide at Ctrl-C whether it ends or continues without you."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from elasticdl.cluster.kubernetes.api import connect
from elasticdl.control.protocol.status import INTERRUPT, JobStatus
from elasticdl.errors import BadModel, BadSetting
from elasticdl.files.drafts import replace_file
from elasticdl.job import podjob, podsubmit
from elasticdl.job.display import Display, open_display, print_end, print_log_end
from elasticdl.job.podjob import PodJob, Seen, SignedOut
from elasticdl.spec import edge
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.modelfile import check_model_file
from elasticdl.spec.program import check_script
from elasticdl.tabular import template
from elasticdl.tools import survey
from elasticdl.tools.doctor import Finding, Level

_REMOVAL_SECONDS = 60.0
"""Twice the grace period of pods."""
_STANDING_SECONDS = 3.0
"""What lasts no longer is on its way, and people need not know of it."""


def run(spec: JobSpec, stream: TextIO | None = None) -> Mapping[str, Any]:
    """Submit a job and watch it to its end; return its summary, with `exit_code`. Raises BadInput if nothing was submitted.

    `stream` takes the summary in place of standard output.
    """
    began = time.time()
    job = submit(spec)
    display = open_display(began, spec.log_loss_steps)
    display.notice(f"{job.name} has been submitted to the namespace {spec.namespace}")
    try:
        summary = advised(job, _watch(job, display))
        if spec.summary:
            _keep(Path(spec.summary), summary, display)
    finally:
        display.close()
    print_log_end(summary)
    print_end(summary, stream)
    return summary


def advised(job: PodJob, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the summary of a job, if it is stuck with what to do about it."""
    if summary["status"] != "stuck":
        return summary
    advice = (
        f"The job is still there: remove it with `elasticdl stop {job.name} --namespace={job.namespace}`, mend what is wrong "
        "and submit it again; `elasticdl doctor` with the same settings tells more"
    )
    return {**summary, "reason": f"{summary['reason']}. {advice}"}


def _keep(path: Path, summary: Mapping[str, Any], display: Display) -> None:
    """Write the summary; that it can't be written changes nothing of how the job ended."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        display.notice(f"--summary: {path} can't be written: {error.strerror}")


def submit(spec: JobSpec) -> PodJob:
    """Check a job, and create its objects. Raises BadInput."""
    check(spec)
    return podsubmit.submit(spec)


def check(spec: JobSpec) -> None:
    """Check the summary's place, and the model file or the program if it is here. Raises BadInput."""
    if spec.summary and spec.detach:
        raise BadSetting(
            "--summary is written by the command that watches the job, and --detach (in Python wait=False) leaves none; "
            "`elasticdl status` shows it"
        )
    edge.check_summary(spec)
    if spec.job_command and not spec.model_zoo:
        return  # only the image has its program
    if Path(spec.model_zoo).is_dir():
        if spec.job_command:
            check_script(spec, Path(spec.model_zoo))
        else:
            template.check(spec, check_model_file(spec).path)
    elif not spec.model_zoo.startswith("/"):
        raise BadModel(
            f"--model_zoo: {spec.model_zoo!r} is not a directory here; name one, or the absolute path of one that the image has"
        )


def examine(spec: JobSpec) -> Iterator[Finding]:
    """Check a job as far as can be without submitting it. Raises BadInput for what no cluster is needed to know, ApiError, Unreachable."""
    if not spec.on_kubernetes:
        raise BadSetting("doctor checks what a job on Kubernetes needs; --image_name makes it one")
    check(spec)
    spec = podsubmit.prepare(spec)
    podsubmit.packed_zoo(spec)
    yield Finding(Level.OK, "the settings and the model file")
    yield from survey.examine(spec, connect(spec.namespace))


def stop(job: PodJob, say: Callable[[str], None]) -> None:
    """End a job in order, wait for it, and remove everything that it made; `say` what is waited for, and how it ended.

    A job whose master has not run yet has nothing to end in order.
    """
    seen = job.look()
    summary: Mapping[str, Any] | None = seen.summary
    if summary is None and seen.status is not None:
        job.ask_to_stop("stopped by `elasticdl stop`")
        summary = podjob.watch(job, _waiting(say), say)
        # Others who watch read how the job ended from what is removed now, and there is no list of them.
        time.sleep(4 * podjob.LOOK_SECONDS)
    if summary is None:
        ended = f"{job.name} had not begun"
    else:
        ended = f"{job.name}: {summary.get('status')} ({summary.get('reason')})"
    gone = "is removed" if job.remove(_REMOVAL_SECONDS) else "is being removed; its pods have not ended yet"
    say(f"{ended}; everything that it made in the cluster {gone}")


def _waiting(say: Callable[[str], None]) -> Callable[[Seen], None]:
    """Return what says once for what a job waits: its master, then its workers."""
    master = _once(say, lambda seen: seen.waits_for, 0.0)
    workers = _once(say, lambda seen: _waits(seen.status), _STANDING_SECONDS)

    def show(seen: Seen) -> None:
        master(seen)
        workers(seen)

    return show


def _waits(status: JobStatus | None) -> str:
    """Return for what the workers of a job wait that does not train."""
    if status is None or status.state not in ("starting", "waiting"):
        return ""
    # Of one that starts it is a time, which stands still only while no master runs.
    pending = (one for one in status.workers if one.state == "pending" and one.waits_for)
    why = next((f"{one.name} waits: {one.waits_for}" for one in pending), "")
    known = status.reason if status.state == "waiting" else ""
    return "; ".join(filter(None, (known, why)))


def _once(say: Callable[[str], None], what: Callable[[Seen], str], seconds: float) -> Callable[[Seen], None]:
    """Return what says a text once it has stood for so long, when it is another than the last time."""
    last, since, said = "", 0.0, ""

    def show(seen: Seen) -> None:
        nonlocal last, since, said
        text = what(seen)
        if text != last:
            last, since = text, time.monotonic()
        if text != said and time.monotonic() - since >= seconds:
            said = text
            if text:
                say(text)

    return show


def shown_on(display: Display) -> Callable[[Seen], None]:
    """Return what shows looks at a job on a display, and for what the job waits."""
    show_waiting = _waiting(display.notice)

    def show(seen: Seen) -> None:
        show_waiting(seen)
        for event in seen.events:
            display.event(event)
        if seen.status is not None:
            display.status(seen.status)

    return show


def _watch(job: PodJob, display: Display) -> Mapping[str, Any]:
    show, asked = shown_on(display), False
    while True:
        try:
            if asked:
                podjob.patiently(lambda: job.ask_to_stop(INTERRUPT), display.notice)
                display.notice(
                    "the job ends at the next step and writes what there is; once more to leave it alone"
                )
            return podjob.watch(job, show, display.notice)
        except KeyboardInterrupt:
            if not asked and _wants_stop(job, display):
                asked = True
                continue
            return _left_alone(job, "the job ends at its next step" if asked else "the job continues")
        except SignedOut as error:
            return _left_alone(job, f"{error}; the job continues. Sign in to the cluster again")


def _left_alone(job: PodJob, why: str) -> Mapping[str, Any]:
    """Return what stands for the summary of a job that continues without the one who has watched it."""
    return {
        "job": job.name,
        "status": "detached",
        "reason": f"{why}; `elasticdl status {job.name} --namespace={job.namespace}` shows it",
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
