"""What is done before a job runs on Kubernetes: `doctor`, `rbac` and the images of `zoo`."""

from __future__ import annotations

import click

from elasticdl.cli.flags import SettingsCommand, answering, spec_from
from elasticdl.spec import refused
from elasticdl.spec.jobspec import JobKind


def _doctor(job_file: str | None, **values: str | None) -> int:
    from elasticdl.job import podrun

    bad = False
    for finding in podrun.examine(spec_from(job_file, values)):
        click.echo(f"{finding.level:<9} {finding.text}")
        if finding.todo:
            click.echo(f"{'':<9} {finding.todo}")
        bad = bad or finding.level in ("wrong", "waits")
    return 2 if bad else 0


doctor = SettingsCommand(
    JobKind.TRAIN,
    "doctor",
    callback=_doctor,
    short_help="Check everything that a job on Kubernetes needs.",
    help="""Check everything that a job on Kubernetes needs, with the settings of `train`, before it is submitted.

    Prints a line for each thing, and what to do where something is missing. To try the image it makes a small pod for a
    moment. The exit code is 0 if the job would begin, else 2.

    \b
    Example:
      elasticdl doctor -f job.yaml --image_name=IMAGE --namespace=training
    """,
)


@click.command()
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


@click.group()
def zoo() -> None:
    """Make the image of a model zoo."""


@answering(refused.ZOO_INIT)
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


@answering(refused.ZOO_TOOL)
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


@answering(refused.ZOO_TOOL)
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
