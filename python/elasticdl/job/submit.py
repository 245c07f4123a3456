"""Submitting a job: everything that can be known to be wrong is refused first, then the job gets a place and a launcher.

`submit` is what the command line calls, `train` what people call from Python. Both leave nothing behind when they refuse.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, overload

from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace
from elasticdl.errors import BadInput, BadSetting, Interrupted, JobFailed
from elasticdl.files.permissions import private
from elasticdl.job import launcher
from elasticdl.job.launcher import Outcome
from elasticdl.page.port import check_port
from elasticdl.spec import edge
from elasticdl.spec.framework import recorded
from elasticdl.spec.jobspec import JobKind, JobSpec, Strategy
from elasticdl.spec.machine import check_descriptors, check_servers, check_workers
from elasticdl.spec.modelfile import check_model_file
from elasticdl.spec.program import check_program
from elasticdl.tabular import template

if TYPE_CHECKING:
    from elasticdl.job.handle import Job

_LOOK_SECONDS = 0.02
_ENDING_SECONDS = 5.0


@overload
def train(
    spec: JobSpec | None = None, /, *, wait: Literal[True] = True, **settings: object
) -> dict[str, Any]: ...
@overload
def train(spec: JobSpec | None = None, /, *, wait: Literal[False], **settings: object) -> Job: ...
def train(spec: JobSpec | None = None, /, *, wait: bool = True, **settings: object) -> dict[str, Any] | Job:
    """Train a model, wait, and return the summary; with `wait=False` return a `Job` at once.

    The settings are those of `elasticdl train --help`, as keyword arguments; text is read as on the command line. A job that is not
    waited for continues when this program ends.

    Raises BadInput before anything is started, or for what only running shows; JobFailed; Interrupted after Ctrl-C.
    """
    return _begin(replace_settings(spec, settings), wait=wait)


@overload
def evaluate(
    spec: JobSpec | None = None, /, *, wait: Literal[True] = True, **settings: object
) -> dict[str, Any]: ...
@overload
def evaluate(spec: JobSpec | None = None, /, *, wait: Literal[False], **settings: object) -> Job: ...
def evaluate(
    spec: JobSpec | None = None, /, *, wait: bool = True, **settings: object
) -> dict[str, Any] | Job:
    """Evaluate a trained model, wait, and return the summary, of which `metrics` has the values by name.

    The settings are those of `elasticdl evaluate --help`; the rest is as with `train`.
    """
    return _begin(replace_settings(spec, settings, JobKind.EVALUATE), wait=wait)


@overload
def predict(
    spec: JobSpec | None = None, /, *, wait: Literal[True] = True, **settings: object
) -> dict[str, Any]: ...
@overload
def predict(spec: JobSpec | None = None, /, *, wait: Literal[False], **settings: object) -> Job: ...
def predict(spec: JobSpec | None = None, /, *, wait: bool = True, **settings: object) -> dict[str, Any] | Job:
    """Predict with a trained model, wait, and return the summary; the predictions are in the directory `output`.

    The settings are those of `elasticdl predict --help`; the rest is as with `train`.
    """
    return _begin(replace_settings(spec, settings, JobKind.PREDICT), wait=wait)


def _begin(spec: JobSpec, *, wait: bool) -> dict[str, Any] | Job:
    """Start a job, and wait for it or not. Raises what `train` raises."""
    if spec.detach:
        raise BadSetting(
            f"detach= is for the command line; elasticdl.{spec.kind}(…, wait=False) returns a Job at once"
        )
    if wait:
        return run(spec)
    from elasticdl.job.backends import LocalBackend, PodBackend
    from elasticdl.job.handle import Job

    spec = replace(spec, detach=True)
    if spec.on_kubernetes:
        from elasticdl.job import podrun

        return Job(PodBackend(podrun.submit(spec)))
    return Job(LocalBackend(detach(spec)))


def run(spec: JobSpec, stream: TextIO | None = None) -> dict[str, Any]:
    """Run a job and return its summary, which is printed to `stream`, or to standard output. Raises what `train` raises."""
    if spec.on_kubernetes:
        from elasticdl.job import podrun

        summary = dict(podrun.run(spec, stream))
        code = summary["exit_code"]
        logs = f"elasticdl logs {spec.job_name} --namespace={spec.namespace}"
    else:
        outcome = submit(spec, stream=stream)
        summary, code = outcome.summary, outcome.code
        logs = f"elasticdl logs {outcome.place.name}"
    return done_or_raise(summary, code, logs)


def done_or_raise(summary: dict[str, Any], code: int, logs: str) -> dict[str, Any]:
    """Return the summary of a job that ended with a result.

    Args:
        summary: of the job.
        code: 0 done, 1 failed, 2 bad input, 130 interrupted.
        logs: the command that shows its logs.

    Raises BadInput, JobFailed or Interrupted for all others.
    """
    reason = str(summary.get("reason", ""))
    match code:
        case 0:
            return summary
        case 2:
            raise BadInput(reason)
        case 130:
            raise Interrupted(reason)
        case _:
            raise JobFailed(f"{reason}; `{logs}` shows more")


def replace_settings(
    spec: JobSpec | None, settings: dict[str, object], kind: JobKind = JobKind.TRAIN
) -> JobSpec:
    """Return the settings of a call: a ready `JobSpec`, or one made of keyword arguments; both is refused."""
    if spec is None:
        given = edge.from_arguments(settings)
        built = edge.build(given, kind)
        for note in edge.notes(given, kind):
            warnings.warn(note, stacklevel=3)  # the line that calls train()
        return built
    if settings:
        raise BadInput(
            f"{kind}() takes a JobSpec or settings, not both; change a JobSpec with dataclasses.replace"
        )
    if spec.kind is not kind and (spec.kind, kind) != (JobKind.PROCESS, JobKind.TRAIN):
        raise BadInput(
            f"the JobSpec is of a job that is to {spec.kind}; give it to {spec.kind}(), or make another one"
        )
    return spec


def submit(spec: JobSpec, submitted_at: float | None = None, stream: TextIO | None = None) -> Outcome:
    """Run a job in this process's care until it has ended, showing it on standard error and its summary on standard output.

    Args:
        spec: the settings.
        submitted_at: when the person asked for it, if that was noticeably before now.
        stream: takes the summary in place of standard output.

    Raises BadInput before anything is started.
    """
    from elasticdl.job import display

    place, lock = prepare(spec, submitted_at)
    spec = place.spec()
    try:
        if spec.distribution_strategy is Strategy.LOCAL:
            from elasticdl.job.local_run import run_local

            outcome = run_local(spec, place)
        else:
            outcome = launcher.supervise(
                place, spec, lambda: display.open_display(place.submitted_at, spec.log_loss_steps)
            )
    finally:
        place.close()
        os.close(lock)
    display.print_end(outcome.summary, stream)
    return outcome


def detach(spec: JobSpec, submitted_at: float | None = None) -> JobPlace:
    """Start a job with a launcher of its own, which lives on when this process ends."""
    if spec.distribution_strategy is Strategy.LOCAL:
        raise BadInput(
            "--detach (in Python wait=False): the Local strategy trains in this process; use AllreduceStrategy with --num_workers=1"
        )
    place, lock = prepare(spec, submitted_at)
    process: subprocess.Popen[bytes] | None = None
    try:
        with open(place.log_path("launcher-0-1"), "ab", opener=private) as log:
            # The lock goes with the launcher, so that there is no moment in which the job seems to have ended.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "elasticdl.job.launcher", str(place.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        # So that the next command finds the job at work. Its launcher may also have ended by then, one way or the other.
        while not place.listening() and process.poll() is None:
            time.sleep(_LOOK_SECONDS)
        # Nobody else of a program that lives on takes note of its end.
        threading.Thread(target=process.wait, name="launcher", daemon=True).start()
    except BaseException:
        if process is not None:  # Ctrl-C: a session of its own does not hear it
            process.kill()
            process.wait()
        place.remove()
        raise
    finally:
        os.close(lock)
    return place


def prepare(spec: JobSpec, submitted_at: float | None = None) -> tuple[JobPlace, int]:
    """Check everything that can be checked without running anything, and make the job's place.

    Returns the place and the descriptor of its lock. Raises BadInput.
    """
    edge.check_zoo(spec)
    if spec.job_command:
        check_program(spec)
        custom_reader, directory = False, Path(spec.output).is_dir()  # its result may be either
    else:
        model = check_model_file(spec)
        template.check(spec, model.path)
        spec = recorded(spec)
        custom_reader, directory = model.custom_reader, not model.format.suffix
    check_workers(spec.num_workers.maximum, spec.num_workers.minimum, "--num_workers")
    if spec.num_ps_pods:
        check_servers(spec, spec.num_ps_pods, "--num_ps_pods")
    check_descriptors(spec.num_workers.maximum + spec.num_ps_pods)
    if spec.status_port:
        check_port(spec.status_port)
    edge.check_paths(spec, custom_reader=custom_reader, directory=directory)
    if (table := spec.output_table) is not None:
        from elasticdl.data.writers import tableload

        tableload.check(table)
    spec = replace(edge.absolute(spec), detach=False)
    _check_checkpoints(spec)
    with places.one_at_a_time():
        _check_others(spec)
        place = places.create(spec, submitted_at)
        return place, place.hold()


def _check_others(spec: JobSpec) -> None:
    """Check that no job that runs writes where this one does. One that has summed up is about to end, which is waited for."""
    until = time.monotonic() + _ENDING_SECONDS
    for place in places.places():
        if not place.running():
            continue
        try:
            other = place.spec()
        except (OSError, BadSetting):
            continue  # it is being removed, or of another version
        while place.running():
            try:
                edge.check_apart_from(spec, other, place.name)
                break
            except BadSetting:
                if place.summary() is None or time.monotonic() > until:
                    raise
            time.sleep(_LOOK_SECONDS)


def _check_checkpoints(spec: JobSpec) -> None:
    if spec.kind is not JobKind.TRAIN:
        from elasticdl.master.tasking import weights

        weights.open_checkpoint(spec, verify=False)
    elif spec.num_ps_pods:
        from elasticdl.master.ps import resuming as of_servers

        of_servers.check(spec)
    elif spec.checkpoint_dir or spec.checkpoint_dir_for_init:
        from elasticdl.master.allreduce import resuming as of_group

        of_group.check(spec)
