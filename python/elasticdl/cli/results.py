"""Commands for what jobs leave behind: records of the audit, and checkpoints."""

from __future__ import annotations

import click

from elasticdl.cli.flags import spec_from


@click.command()
@click.argument(
    "directories",
    metavar="DIRECTORY...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False),
)
def audit(directories: tuple[str, ...]) -> int:
    """Prove from the workers' records that each record of each epoch was trained exactly once.

    Each directory is of one job; the first one of which that can't be proven ends the command.

    \b
    Example:
      elasticdl train -f job.yaml --audit=DIRECTORY
      elasticdl audit DIRECTORY
    """
    from pathlib import Path

    from elasticdl.audit import audit as prove

    for directory in directories:
        if len(directories) > 1:
            click.echo(f"{directory}:")
        click.echo(prove(Path(directory)))
    return 0


@click.command()
@click.argument("checkpoint")
@click.option("--output", required=True, metavar="PATH", help="Where the model is written.")
@click.option("--output_format", metavar="NAME", help="As in `train`; parquet needs no model.")
@click.option("--model_zoo", default=".", metavar="DIR", help="Directory that model_def is looked up in.")
@click.option("--model_def", metavar="NAME", help="The model that was trained, as in `train`.")
@click.option("--framework", metavar="NAME", help="As in `train`.")
@click.option("--model_params", metavar="K=V;…", help="As in `train`.")
@click.option("--optimizer", metavar="SYMBOL", help="As in `train`.")
@click.option("--callbacks", metavar="SYMBOL", help="As in `train`.")
@click.option("--eval_metrics_fn", metavar="SYMBOL", help="As in `train`.")
@click.option("--embedding_threshold", metavar="BYTES", help="As in `train`.")
def export(checkpoint: str, output: str, output_format: str | None, **model: str | None) -> int:
    """Turn a checkpoint, or the newest in a directory, into a standard model.

    It is the model that a job would have written that had ended there. Tables of parameter servers may be larger than memory. Beside the
    output as much room is needed again as their trained rows take.

    \b
    Example:
      elasticdl export checkpoints --output=deepfm.keras \\
          --model_zoo=model_zoo --model_def=deepfm.deepfm_flights.custom_model
    """
    from pathlib import Path

    from elasticdl.checkpoint.layout import locate
    from elasticdl.tools.export import check_of_model_file, export_model, export_tables

    # before what is said of a model that it could be of
    check_of_model_file(locate(Path(checkpoint), "CHECKPOINT"))
    try:
        if output_format == "parquet":
            passed_over = export_tables(checkpoint, output)
        else:
            # Settings are whole only with data and servers, of which nothing is used here.
            given = {"training_data": checkpoint, "num_ps_pods": "1"}
            passed_over = export_model(
                checkpoint,
                spec_from(None, {**given, "output": output, "output_format": output_format, **model}),
            )
    except OSError as error:
        click.echo(f"error: the model can't be written to {output}: {error.strerror or error}", err=True)
        return 1
    if passed_over:
        click.echo(passed_over, err=True)
    click.echo(f"wrote {output}")
    return 0


@click.group()
def checkpoint() -> None:
    """Look inside checkpoints."""


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
