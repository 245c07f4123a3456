"""The commands. Each imports what it needs when it runs, and returns its exit code."""

from __future__ import annotations

import click

from elasticdl.cli import jobs, preparing, results, sql, training
from elasticdl.cli.flags import Commands

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


@elasticdl.command()
def version() -> int:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(f"elasticdl {installed('elasticdl')}")
    return 0


for _command in (
    training.train, training.run, training.evaluate, training.predict, sql.sql, preparing.doctor, preparing.rbac, preparing.zoo,
    jobs.status, jobs.logs, jobs.list_jobs, jobs.stop, jobs.scale, jobs.profile, jobs.chaos, results.audit, results.export,
    results.checkpoint,
):  # fmt: skip
    elasticdl.add_command(_command)
