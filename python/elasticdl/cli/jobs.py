"""Commands for jobs that have been started: look at them, steer them, end them, disturb them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from elasticdl.job.podjob import PodJob

_namespace = click.option(
    "--namespace", metavar="NAME", help="The job is on Kubernetes, in this namespace; else on this machine."
)


@click.command()
@click.argument("job")
@click.option(
    "--open", "opens", is_flag=True, help="Open the job's page in a browser, and print its address."
)
@_namespace
def status(job: str, opens: bool, namespace: str | None) -> int:
    """Show how a job stands, or how it ended.

    \b
    Examples:
      elasticdl status mnist-functional-api
      elasticdl status mnist-functional-api --open
      elasticdl status test-mnist --namespace=training
    """
    from elasticdl.job import display

    if opens:
        return _open_page(job, namespace)
    if namespace:
        pod_job = _pod_job(job, namespace)
        seen = pod_job.look()
        if seen.summary is not None:
            display.print_log_end(pod_job.explained(seen.summary), sys.stdout)
            display.print_traceback(seen.summary, sys.stdout)
            display.print_summary(seen.summary)
        lines = [seen.waits_for]
        if seen.status is not None:
            lacks = pod_job.master_lacks() if seen.summary is None else ""
            lines = [*display.status_lines(seen.status), *([f"no master runs now: {lacks}"] if lacks else [])]
        for line in lines if seen.summary is None else ():
            click.echo(line)
        return 0
    from elasticdl.cluster.local import place as places
    from elasticdl.errors import BadSetting, MasterAway
    from elasticdl.job.asking import ask, ends

    place = places.find(job)
    if place.running():
        try:
            for line in display.status_lines(ask(place, lambda client: client.status())):
                click.echo(line)
            return 0
        except (BadSetting, MasterAway):
            if not ends(place):
                raise
    summary = place.summary()
    if summary is None:
        click.echo(
            f"{place.name} has ended without a summary: its launcher was killed; `elasticdl list --prune` removes what it left."
        )
        return 1
    display.print_traceback(summary, sys.stdout)
    display.print_summary(summary)
    return 0


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--role",
    default="",
    metavar="NAME",
    help="Only these processes: master, worker, worker-3, worker-3-2, ps, …",
)
@_namespace
def logs(job: str, follow: bool, role: str, namespace: str | None) -> int:
    """Print the logs of a job's processes, merged by time (on Kubernetes as they come).

    \b
    Example:
      elasticdl logs -f --role=worker-0 mnist-functional-api
    """
    from elasticdl.cluster.local import place as places
    from elasticdl.job.logs import merged

    role = role.replace("_", "-")
    if namespace:
        lines = _pod_job(job, namespace).logs(role, follow=follow)
    else:
        lines = merged(places.find(job), role, follow=follow)
    for line in lines:
        click.echo(line)
    return 0


@click.command(name="list")
@click.option("--prune", is_flag=True, help="Remove the folders of all jobs that have ended.")
@click.option("--namespace", metavar="NAME", help="List the jobs on Kubernetes in this namespace.")
def list_jobs(prune: bool, namespace: str | None) -> int:
    """List the jobs of this user, the oldest first, or those of a namespace on Kubernetes."""
    from elasticdl.cluster.local import place as places

    if namespace and prune:
        raise click.UsageError(
            "--prune removes folders of this machine; a job of a namespace is removed by `elasticdl stop`"
        )
    if namespace:
        from elasticdl.cluster.kubernetes.api import connect
        from elasticdl.job.podjob import jobs

        found = jobs(connect(namespace))
        width = max((len(name) for name, _, _ in found), default=0)
        for name, stands, made in found:
            click.echo(f"{name:<{width}}  {made}  {stands}")
        if not found:
            click.echo(f"there are no jobs in the namespace {namespace}")
        return 0
    if prune:
        from elasticdl.job.datafiles import remove_leftovers

        for place in places.prune(remove_leftovers):
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


@click.command()
@click.argument("job")
@_namespace
def stop(job: str, namespace: str | None) -> int:
    """End a job at the next step; it writes what there is.

    A job on Kubernetes is waited for, and how it ended is said; then everything that it made is removed, its logs with it. The exit code
    is 0 however it ended.
    """
    from elasticdl.cluster.local import place as places
    from elasticdl.job.asking import ask

    if namespace:
        from elasticdl.job.podrun import stop as stop_pods

        stop_pods(_pod_job(job, namespace), click.echo)
        return 0
    click.echo(ask(places.find(job), lambda client: client.stop("stopped by `elasticdl stop`")))
    return 0


@click.command()
@click.argument("job")
@click.option(
    "--num_workers", type=click.IntRange(min=1), metavar="N", help="How many workers the job wants."
)
@click.option(
    "--num_ps_pods",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many parameter servers the job wants.",
)
@_namespace
def scale(job: str, num_workers: int | None, num_ps_pods: int | None, namespace: str | None) -> int:
    """Add workers or parameter servers to a running job, or take some away.

    Workers that are too many leave, and others go on with their tasks. Parameter servers that are too many hand their parts of the model
    over before they leave; the job trains meanwhile.

    \b
    Examples:
      elasticdl scale mnist-functional-api --num_workers=3
      elasticdl scale deepfm --num_ps_pods=4
    """
    from elasticdl.cluster.local import place as places
    from elasticdl.control.protocol.status import how_many
    from elasticdl.errors import BadSetting
    from elasticdl.job.asking import ask

    if num_workers is None and num_ps_pods is None:
        raise BadSetting("say how many the job is to have: --num_workers=N, --num_ps_pods=N or both")
    if namespace:
        _pod_job(job, namespace).ask_to_scale(num_workers, num_ps_pods)
        click.echo(f"{job} has been asked for {how_many(num_workers, num_ps_pods)}")
        return 0
    click.echo(ask(places.find(job), lambda client: client.scale(num_workers, num_ps_pods)))
    return 0


@click.command()
@click.argument("job")
@click.option(
    "--steps",
    type=int,
    default=5,
    show_default=True,
    metavar="N",
    help="How many of each worker, 1 to 1,000.",
)
@click.option(
    "--output", metavar="FILE", help="Where the profile is written; else JOB-profile.json in this directory."
)
@click.option("--namespace", metavar="NAME", help="Refused: jobs on Kubernetes can't be profiled.")
def profile(job: str, steps: int, output: str | None, namespace: str | None) -> int:
    """Record what the next steps of each worker consist of.

    The file is in the trace event format of Chrome: https://ui.perfetto.dev and chrome://tracing open it. With parameter servers a step
    is a minibatch. Only jobs on this machine can be profiled.

    \b
    Example:
      elasticdl profile mnist-functional-api --steps=20
    """
    from pathlib import Path

    from elasticdl.cluster.local import place as places
    from elasticdl.errors import BadSetting
    from elasticdl.job.profile import IN_PODS, default_output
    from elasticdl.job.profile import profile as record

    if namespace:
        raise BadSetting(IN_PODS)
    place = places.find(job)
    target = Path(output) if output else default_output(place.name)
    made = record(place, steps, target)
    for line in made.missing:
        click.echo(line)
    workers = len({one.worker for one in made.steps})
    click.echo(f"wrote {len(made.steps)} steps of {workers} workers to {target}")
    return 0


@click.command()
@click.argument("job")
@click.option(
    "--kill",
    multiple=True,
    metavar="ROLE",
    help="Kill a worker, a ps (parameter server) or the master; may be given several times.",
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
    from elasticdl.cluster.local import place as places
    from elasticdl.tools import chaos as faults

    plan = faults.plan_from_flags(kill, freeze, drain, every, count, seed)
    faults.inject(places.find(job), plan, click.echo)
    if not plan.injected:
        click.echo("no fault was injected: the job ended before one could begin")
    return 0


def _open_page(job: str, namespace: str | None) -> int:
    """Open a job's page; one that no master serves is served here until Ctrl-C."""
    from elasticdl.cluster.local import place as places
    from elasticdl.job import browsing, page

    if namespace:
        from elasticdl.job.podpage import serve_pods

        serve_pods(_pod_job(job, namespace), click.echo)
        return 0
    place = places.find(job)
    address = page.await_address(place)
    if address is None:
        page.serve_ended(place, click.echo)
        return 0
    click.echo(address)
    browsing.show(address, place.path)
    return 0


def _pod_job(name: str, namespace: str) -> PodJob:
    from elasticdl.cluster.kubernetes.api import connect
    from elasticdl.job.podjob import find

    return find(connect(namespace), name)
