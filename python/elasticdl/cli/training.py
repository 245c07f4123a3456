"""`train`: hand a job over, wait for it or not, and end with its exit code."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from elasticdl.cli.flags import JOB_FILE, SettingsCommand, setting_flags, spec_from

if TYPE_CHECKING:
    from elasticdl.spec.jobspec import JobSpec


def _train(job_file: str | None, dry_run: bool, form: str | None, **values: str | None) -> int:
    spec = spec_from(job_file, values)
    if form and not dry_run:
        raise click.UsageError("-o says how --dry_run prints; give both, or neither")
    if dry_run:
        from elasticdl.job import dryrun

        click.echo(dryrun.text(spec, form or "yaml"), nl=False)
        return 0

    from elasticdl.job import submit

    started = _process_started()
    if spec.on_kubernetes:
        return _train_in_pods(spec)
    if not spec.detach:
        outcome = submit.submit(spec, started)
        if outcome.code in (1, 2):
            click.echo(f"error: {outcome.summary.get('reason', '')}", err=True)
        return outcome.code
    name = submit.detach(spec, started).name
    click.echo(f"{name} has been started. Look at it, read along, end it:")
    for command in (f"elasticdl status {name}", f"elasticdl logs -f {name}", f"elasticdl stop {name}"):
        click.echo(f"  {command}")
    return 0


def _train_in_pods(spec: JobSpec) -> int:
    from elasticdl.job import podrun

    if spec.detach:
        name = podrun.submit(spec).name
        click.echo(
            f"{name} has been submitted to the namespace {spec.namespace}. Look at it, read along, end it:"
        )
        for command in (f"status {name}", f"logs -f {name}", f"stop {name}"):
            click.echo(f"  elasticdl {command} --namespace={spec.namespace}")
        return 0
    summary = podrun.run(spec)
    code = int(summary["exit_code"])
    if code in (1, 2):
        click.echo(f"error: {summary.get('reason', '')}", err=True)
    return code


def _process_started() -> float | None:
    """Return when this process was started, in seconds since the Unix epoch: that is when the person pressed return."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time() - running


train = SettingsCommand(
    "train",
    callback=_train,
    params=[
        *setting_flags(),
        JOB_FILE,
        click.Option(
            ["--dry_run"],
            is_flag=True,
            help="Print the objects that a job on Kubernetes would consist of, and create none.",
        ),
        click.Option(
            ["-o", "form"],
            type=click.Choice(["yaml", "json"]),
            help="How --dry_run prints them; yaml by default.",
        ),
    ],
    short_help="Train a model and wait for it.",
    help="""Train a model and wait for it: live progress, then a summary.

    The exit code is the job's: 0 done, 1 failed, 2 bad input, 130 interrupted. Ctrl-C ends the job at the next step and
    writes what there is; a second one stops everything at once. On Kubernetes it asks whether to end the job or to leave it
    alone (130 as well); where nobody can be asked it ends it, and a second one leaves it.

    \b
    Examples:
      elasticdl train --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model \\
          --training_data=DIR --num_workers=2
      elasticdl train -f job.yaml --num_epochs=3 --output=model.keras
      elasticdl train -f job.yaml --num_workers=2:4 --audit=audit --detach
      elasticdl train -f job.yaml --image_name=IMAGE --dry_run -o yaml
    """,
)
