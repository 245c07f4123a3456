"""`train`, `run`, `evaluate`, `predict`: hand a job over, wait for it or not, and end with its exit code."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from elasticdl.cli.flags import SettingsCommand, spec_from, spec_of_program
from elasticdl.spec.jobspec import JobKind, settings_of_loop

if TYPE_CHECKING:
    from elasticdl.spec.jobspec import JobSpec


def _train(job_file: str | None, dry_run: bool, form: str | None, **values: str | None) -> int:
    return _start(spec_from(job_file, values), dry_run, form)


def _evaluate(job_file: str | None, dry_run: bool, form: str | None, **values: str | None) -> int:
    return _start(spec_from(job_file, values, JobKind.EVALUATE), dry_run, form)


def _predict(job_file: str | None, dry_run: bool, form: str | None, **values: str | None) -> int:
    return _start(spec_from(job_file, values, JobKind.PREDICT), dry_run, form)


def _run(
    job_file: str | None, dry_run: bool, form: str | None, command: tuple[str, ...], **values: str | None
) -> int:
    if values.get("job_command") is not None:
        raise click.UsageError("--job_command is a flag of `train`; write the command at the end, after `--`")
    return _start(spec_of_program(job_file, values, command), dry_run, form)


def _start(spec: JobSpec, dry_run: bool, form: str | None) -> int:
    if form and not dry_run:
        raise click.UsageError("-o says how --dry_run prints; give both, or neither")
    if dry_run:
        from elasticdl.job import dryrun

        click.echo(dryrun.text(spec, form or "yaml"), nl=False)
        return 0

    from elasticdl.job import submit

    started = _process_started()
    if spec.on_kubernetes:
        return _start_in_pods(spec)
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


def _start_in_pods(spec: JobSpec) -> int:
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


_DRY_RUN = (
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
)

train = SettingsCommand(
    JobKind.TRAIN,
    "train",
    callback=_train,
    params=_DRY_RUN,
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

run = SettingsCommand(
    JobKind.TRAIN,
    "run",
    callback=_run,
    params=(
        *_DRY_RUN,
        click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND..."),
    ),
    settings=settings_of_loop(),
    context_settings={"allow_interspersed_args": False},
    short_help="Run a program with a custom training loop, or with tasks.",
    help="""Run a program with a custom training loop in every worker, and wait for it.

    The program calls elasticdl.init(), and says itself what it trains on: its data, batches, epochs and seed are no flags
    here. It runs where this command was called, in --model_zoo if that is given, on Kubernetes in a copy of it; `python`
    is the one in PATH. What follows -- is the command, of which each word is passed on as it is. The exit code is the job's:
    0 done, 1 failed, 2 bad input, 130 interrupted. Ctrl-C ends the job at the next step, as with `train`.

    With --work=tasks the program trains nothing: it processes records once, which it gets from elasticdl.shards(), and
    --output is a new directory with a file for each task.

    \b
    Examples:
      elasticdl run --num_workers=3 -- python train.py --lr 0.1
      elasticdl run --work=tasks --num_workers=3 --output=DIR -- python process.py
      elasticdl run --num_workers=2:4 --output=model.npz --audit=audit -- python train.py
      elasticdl run --model_zoo=src --image_name=IMAGE --checkpoint_dir=/data/c \\
          --volume=claim_name=data,mount_path=/data --num_workers=8 -- python train.py --data /data/train
      elasticdl train --job_command="python train.py --lr 0.1" --num_workers=3
    """,
)

evaluate = SettingsCommand(
    JobKind.EVALUATE,
    "evaluate",
    callback=_evaluate,
    params=_DRY_RUN,
    short_help="Evaluate a trained model on data.",
    help="""Evaluate a trained model on data: its loss, and the metrics of eval_metrics_fn.

    Workers share the data; each record counts once, whichever of them are killed, and the values have the same bits for any
    number of workers. The summary shows them. A job file of `train` will do: what only training uses is passed over.

    \b
    Example:
      elasticdl evaluate --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model \\
          --trained_model=mnist.keras --validation_data=DIR --num_workers=2
    """,
)

predict = SettingsCommand(
    JobKind.PREDICT,
    "predict",
    callback=_predict,
    params=_DRY_RUN,
    short_help="Predict with a trained model.",
    help="""Predict with a trained model, for each record of some data.

    The result is a directory of Parquet (or CSV) files, which appears when all of it is there: one row for each record, in
    the order of the data, with the name of its shard, its number there, and what the model gives. Whichever workers are
    killed, the files have the same bytes.

    \b
    Examples:
      elasticdl predict --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model \\
          --trained_model=mnist.keras --prediction_data=DIR --output=predictions
      elasticdl predict -f job.yaml --trained_model=mnist.keras --prediction_data=DIR --output=predictions --output_format=csv
    """,
)
