"""The commands. Each imports what it needs when it runs, and returns its exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from elasticdl.cli.flags import Commands, SettingsCommand, setting_flags

if TYPE_CHECKING:
    from elasticdl.control.client import JobClient
    from elasticdl.spec.place import JobPlace

Answer = TypeVar("Answer")

_PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.1

_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    # Underscores are canonical; --num-workers is the same as --num_workers.
    "token_normalize_func": lambda name: name.replace("-", "_"),
    "max_content_width": 110,
}


@click.group(cls=Commands, context_settings=_CONTEXT)
@click.version_option(package_name="elasticdl", message="%(prog)s %(version)s", help="Print the version.")
def elasticdl() -> None:
    """Train deep-learning models with workers that may be killed or added at any moment.

    \b
    Examples:
      elasticdl train --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model \\
          --training_data=DIR --num_workers=2 --output=mnist.keras
      elasticdl status mnist-functional-api
      elasticdl scale mnist-functional-api --num_workers=3
    """


def _train(job_file: str | None, **values: str | None) -> int:
    from elasticdl.spec import edge

    given = edge.from_file(job_file) if job_file else {}
    given |= {name: edge.Given(value, f"--{name}") for name, value in values.items() if value is not None}
    spec = edge.build(given)

    from elasticdl.job import submit

    started = _process_started()
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


elasticdl.add_command(
    SettingsCommand(
        "train",
        callback=_train,
        params=[
            *setting_flags(),
            click.Option(
                ["-f", "job_file"], metavar="JOB.YAML", help="Read settings from a YAML file; flags win."
            ),
        ],
        short_help="Train a model and wait for it.",
        help="""Train a model and wait for it: live progress, then a summary.

        The exit code is the job's: 0 done, 1 failed, 2 bad input, 130 interrupted. Ctrl-C ends the job at the next step and
        writes what there is; a second one stops everything at once.

        \b
        Examples:
          elasticdl train --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model \\
              --training_data=DIR --num_workers=2
          elasticdl train -f job.yaml --num_epochs=3 --output=model.keras
          elasticdl train -f job.yaml --num_workers=2:4 --audit=audit --detach
        """,
    )
)


@elasticdl.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def audit(directory: str) -> int:
    """Prove from the workers' records that each record of each epoch was trained exactly once.

    \b
    Example:
      elasticdl train -f job.yaml --audit=DIRECTORY
      elasticdl audit DIRECTORY
    """
    from pathlib import Path

    from elasticdl.audit import audit as prove

    click.echo(prove(Path(directory)))
    return 0


@elasticdl.command()
@click.argument("job")
def status(job: str) -> int:
    """Show how a job stands, or how it ended."""
    from elasticdl.job import display
    from elasticdl.spec import place as places

    place = places.find(job)
    if not place.running():
        summary = place.summary()
        if summary is None:
            click.echo(f"{place.name} has ended without a summary: its launcher was killed.")
            return 1
        display.print_traceback(summary, sys.stdout)
        display.print_summary(summary)
        return 0
    for line in display.status_lines(_ask(place, lambda client: client.status())):
        click.echo(line)
    return 0


@elasticdl.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--role", default="", metavar="NAME", help="Only these processes: master, worker, worker-3, worker-3-2."
)
def logs(job: str, follow: bool, role: str) -> int:
    """Print the logs of a job's processes, merged by time.

    \b
    Example:
      elasticdl logs -f --role=worker-0 mnist-functional-api
    """
    from elasticdl.job.logs import merged
    from elasticdl.spec import place as places

    for line in merged(places.find(job), role.replace("_", "-"), follow=follow):
        click.echo(line)
    return 0


@elasticdl.command(name="list")
@click.option("--prune", is_flag=True, help="Remove the folders of all jobs that have ended.")
def list_jobs(prune: bool) -> int:
    """List the jobs of this user, the oldest first."""
    from elasticdl.spec import place as places

    if prune:
        for place in places.prune():
            click.echo(f"removed {place.path}")
        return 0
    rows = []
    for place in places.places():
        summary = place.summary() or {}
        state = "running" if place.running() else str(summary.get("status", "killed"))
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(place.submitted_at))
        rows.append((place.name, state, when, str(place.path)))
    width = max((len(row[0]) for row in rows), default=0)
    for name, state, when, path in rows:
        click.echo(f"{name:<{width}}  {state:<11}  {when}  {path}")
    if not rows:
        click.echo("there are no jobs")
    return 0


@elasticdl.command()
@click.argument("job")
def stop(job: str) -> int:
    """End a job at the next step; it writes what there is."""
    from elasticdl.spec import place as places

    click.echo(_ask(places.find(job), lambda client: client.stop("stopped by `elasticdl stop`")))
    return 0


@elasticdl.command()
@click.argument("job")
@click.option(
    "--num_workers",
    required=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="How many workers the job wants.",
)
def scale(job: str, num_workers: int) -> int:
    """Add workers to a running job, or drain some.

    \b
    Example:
      elasticdl scale mnist-functional-api --num_workers=3
    """
    from elasticdl.spec import place as places

    click.echo(_ask(places.find(job), lambda client: client.scale(num_workers)))
    return 0


@elasticdl.command()
@click.argument("job")
@click.option(
    "--kill", multiple=True, metavar="ROLE", help="Kill a worker or the master; may be given for both."
)
@click.option("--stop", "freeze", is_flag=True, help="Stop a worker for longer than the group waits for it.")
@click.option("--drain", is_flag=True, help="Ask a worker to leave.")
@click.option(
    "--every", default="2s", show_default=True, metavar="TIME", help="Mean time between two faults."
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="End after so many faults; else with the job."
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of all choices.")
def chaos(
    job: str, kill: tuple[str, ...], freeze: bool, drain: bool, every: str, count: int | None, seed: int
) -> int:
    """Inject faults into a running job, by a seeded plan.

    \b
    Example:
      elasticdl chaos mnist-functional-api --kill worker --every 2s --count 10
    """
    from elasticdl.job import chaos as faults
    from elasticdl.spec import place as places

    plan = faults.plan_from_flags(kill, freeze, drain, every, count, seed)
    faults.inject(places.find(job), plan, click.echo)
    return 0


@elasticdl.command()
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"elasticdl {installed('elasticdl')}")
    return 0


def _ask(place: JobPlace, question: Callable[[JobClient], Answer]) -> Answer:
    """Ask a job's master; one that is just starting, for the first time or again, is waited for."""
    from elasticdl.control.client import JobClient
    from elasticdl.errors import MasterAway

    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with JobClient(place.control_address, place.token()) as client:
                return question(client)
        except MasterAway:
            if time.monotonic() > until:
                raise
        time.sleep(_RETRY_SECONDS)


def _process_started() -> float | None:
    """Return when this process was started, in seconds since the Unix epoch: that is when the person pressed return."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time() - running
