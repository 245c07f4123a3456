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
    from elasticdl.cluster.local.place import JobPlace
    from elasticdl.control.transport.client import JobClient
    from elasticdl.job.podjob import PodJob
    from elasticdl.spec.jobspec import JobSpec

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


def _spec(job_file: str | None, values: dict[str, str | None]) -> JobSpec:
    from elasticdl.spec import edge

    given = edge.from_file(job_file) if job_file else {}
    given |= {name: edge.Given(value, f"--{name}") for name, value in values.items() if value is not None}
    spec = edge.build(given)
    for note in edge.notes(given):
        click.echo(f"note: {note}", err=True)
    return spec


def _train(job_file: str | None, dry_run: bool, form: str | None, **values: str | None) -> int:
    spec = _spec(job_file, values)
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


_job_file = click.Option(
    ["-f", "job_file"], metavar="JOB.YAML", help="Read settings from a YAML file; flags win."
)

elasticdl.add_command(
    SettingsCommand(
        "train",
        callback=_train,
        params=[
            *setting_flags(),
            _job_file,
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
)


def _doctor(job_file: str | None, **values: str | None) -> int:
    from elasticdl.job import podrun

    bad = False
    for finding in podrun.examine(_spec(job_file, values)):
        click.echo(f"{finding.level:<9} {finding.text}")
        if finding.todo:
            click.echo(f"{'':<9} {finding.todo}")
        bad = bad or finding.level in ("wrong", "waits")
    return 2 if bad else 0


elasticdl.add_command(
    SettingsCommand(
        "doctor",
        callback=_doctor,
        params=[*setting_flags(), _job_file],
        short_help="Check everything that a job on Kubernetes needs.",
        help="""Check everything that a job on Kubernetes needs, with the settings of `train`, before it is submitted.

        Prints a line for each thing, and what to do where something is missing. To try the image it makes a small pod for a
        moment. The exit code is 0 if the job would begin, else 2.

        \b
        Example:
          elasticdl doctor -f job.yaml --image_name=IMAGE --namespace=training
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


_namespace = click.option(
    "--namespace", metavar="NAME", help="The job is on Kubernetes, in this namespace; else on this machine."
)


@elasticdl.command()
@click.argument("job")
@_namespace
def status(job: str, namespace: str | None) -> int:
    """Show how a job stands, or how it ended.

    \b
    Examples:
      elasticdl status mnist-functional-api
      elasticdl status test-mnist --namespace=training
    """
    from elasticdl.job import display

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


@elasticdl.command(name="list")
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
@_namespace
def stop(job: str, namespace: str | None) -> int:
    """End a job at the next step; it writes what there is.

    A job on Kubernetes is waited for, and how it ended is said; then everything that it made is removed, its logs with it. The exit code
    is 0 however it ended.
    """
    from elasticdl.cluster.local import place as places

    if namespace:
        from elasticdl.job.podrun import stop as stop_pods

        stop_pods(_pod_job(job, namespace), click.echo)
        return 0
    click.echo(_ask(places.find(job), lambda client: client.stop("stopped by `elasticdl stop`")))
    return 0


@elasticdl.command()
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

    if num_workers is None and num_ps_pods is None:
        raise BadSetting("say how many the job is to have: --num_workers=N, --num_ps_pods=N or both")
    if namespace:
        _pod_job(job, namespace).ask_to_scale(num_workers, num_ps_pods)
        click.echo(f"{job} has been asked for {how_many(num_workers, num_ps_pods)}")
        return 0
    click.echo(_ask(places.find(job), lambda client: client.scale(num_workers, num_ps_pods)))
    return 0


@elasticdl.command()
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
    return 0


@elasticdl.command()
@click.argument("checkpoint")
@click.option("--output", required=True, metavar="PATH", help="Where the model is written.")
@click.option("--output_format", metavar="NAME", help="As in `train`; parquet needs no model.")
@click.option("--model_zoo", default=".", metavar="DIR", help="Directory that model_def is looked up in.")
@click.option("--model_def", metavar="NAME", help="The model that was trained, as in `train`.")
@click.option("--framework", metavar="NAME", help="As in `train`.")
@click.option("--model_params", metavar="K=V;…", help="As in `train`.")
@click.option("--embedding_threshold", metavar="BYTES", help="As in `train`.")
def export(checkpoint: str, output: str, output_format: str | None, **model: str | None) -> int:
    """Turn a checkpoint of parameter servers, or the newest in a directory, into a standard model.

    Tables may be larger than memory. Beside the output as much room is needed again as the trained rows take.

    \b
    Example:
      elasticdl export checkpoints --output=deepfm.keras \\
          --model_zoo=model_zoo --model_def=deepfm.deepfm_flights.custom_model
    """
    from pathlib import Path

    from elasticdl.checkpoint.layout import locate
    from elasticdl.tools.export import export_model, export_tables

    locate(Path(checkpoint), "CHECKPOINT")  # before what is said of a model that it could be of
    try:
        if output_format == "parquet":
            export_tables(checkpoint, output)
        else:
            # Settings are whole only with data and servers, of which nothing is used here.
            given = {"training_data": checkpoint, "num_ps_pods": "1"}
            export_model(
                checkpoint, _spec(None, {**given, "output": output, "output_format": output_format, **model})
            )
    except OSError as error:
        click.echo(f"error: the model can't be written to {output}: {error.strerror or error}", err=True)
        return 1
    click.echo(f"wrote {output}")
    return 0


@elasticdl.command()
@click.option(
    "--namespace", default="default", show_default=True, metavar="NAME", help="Where jobs will run."
)
def rbac(namespace: str) -> int:
    """Print the rights that jobs need in a namespace, for kubectl.

    \b
    Example:
      elasticdl rbac --namespace=training | kubectl apply -f -
    """
    import yaml

    from elasticdl.cluster.kubernetes.rbac import objects

    click.echo(yaml.safe_dump_all(objects(namespace), sort_keys=False).rstrip())
    return 0


_tool = click.option(
    "--tool", default="", type=click.Choice(["", "docker", "podman", "buildah"]), metavar="NAME",
    help="docker, podman or buildah; the first that is there by default.",
)  # fmt: skip


@elasticdl.group()
def zoo() -> None:
    """Make the image of a model zoo."""


@zoo.command(name="init")
@click.argument("directory", default=".")
@click.option(
    "--base", default="", metavar="IMAGE", help="Image with Python to build on; NAME@sha256:… pins it."
)
def zoo_init(directory: str, base: str) -> int:
    """Write a Dockerfile into a model zoo, to be changed as you like; `build` also works without.

    \b
    Example:
      elasticdl zoo init model_zoo
    """
    from pathlib import Path

    from elasticdl.tools import zoo as images

    click.echo(f"wrote {images.init(Path(directory), base)}")
    return 0


@zoo.command(name="build", context_settings={"ignore_unknown_options": True})
@click.argument("directory")
@click.option("--image", required=True, metavar="NAME", help="Name of the image.")
@click.option(
    "--wheel", metavar="FILE", help="This package as a wheel; that of this installation by default."
)
@click.option("--gpu", is_flag=True, help="With TensorFlow for GPUs and its CUDA libraries (gigabytes).")
@_tool
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def zoo_build(
    directory: str, image: str, wheel: str | None, gpu: bool, tool: str, more: tuple[str, ...]
) -> int:
    """Build the image of a model zoo; arguments after `--` go to the tool.

    \b
    Example:
      elasticdl zoo build model_zoo --image=registry.example.com/me/elasticdl:mnist
    """
    from pathlib import Path

    from elasticdl.tools import zoo as images

    images.build(Path(directory), image, Path(wheel) if wheel else None, tool, more, gpu=gpu)
    click.echo(f"built {image}")
    return 0


@zoo.command(name="push", context_settings={"ignore_unknown_options": True})
@click.argument("image")
@_tool
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def zoo_push(image: str, tool: str, more: tuple[str, ...]) -> int:
    """Push an image to its registry; arguments after `--` go to the tool.

    \b
    Example:
      elasticdl zoo push registry.example.com/me/elasticdl:mnist
    """
    from elasticdl.tools import zoo as images

    images.push(image, tool, more)
    click.echo(f"pushed {image}")
    return 0


@elasticdl.group()
def checkpoint() -> None:
    """Look inside checkpoints of jobs with parameter servers."""


@checkpoint.command(name="list")
@click.argument("directory")
def checkpoint_list(directory: str) -> int:
    """List the checkpoints in a directory, the oldest first.

    \b
    Example:
      elasticdl checkpoint list checkpoints
    """
    from pathlib import Path

    from elasticdl.tools.checkpoint import listed

    for line in listed(Path(directory)):
        click.echo(line)
    return 0


@checkpoint.command(name="show")
@click.argument("path")
def checkpoint_show(path: str) -> int:
    """Show what a checkpoint holds, or the newest of a directory, and verify all of it.

    \b
    Example:
      elasticdl checkpoint show checkpoints/checkpoint-3
    """
    from pathlib import Path

    from elasticdl.tools.checkpoint import shown

    for line in shown(Path(path)):
        click.echo(line)
    return 0


@elasticdl.command()
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"elasticdl {installed('elasticdl')}")
    return 0


def _pod_job(name: str, namespace: str) -> PodJob:
    from elasticdl.cluster.kubernetes.api import connect
    from elasticdl.job.podjob import find

    return find(connect(namespace), name)


def _ask(place: JobPlace, question: Callable[[JobClient], Answer]) -> Answer:
    """Ask a job's master; one that is just starting, for the first time or again, is waited for."""
    from elasticdl.control.transport.client import JobClient
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
