"""`elasticdl sql`: read a script, run it, and print the rows that its statements give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasticdl.cli.flags import SettingsCommand
from elasticdl.query.ownsettings import why_not
from elasticdl.spec import edge
from elasticdl.spec.jobspec import JobKind, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from elasticdl.query.answer import Answer


def _sql(
    text: str | None,
    script: str | None,
    database: str | None,
    database_secret: str | None,
    store: str | None,
    dry_run: bool,
    form: str,
    **values: str | None,
) -> int:
    from pathlib import Path

    if (text is None) == (script is None):
        raise click.UsageError("give the statements as TEXT, or a file with -f; one of them")
    name = script or "TEXT"
    body = text if text is not None else _read(Path(str(script)))
    flags = {name: edge.Given(value, f"--{name}") for name, value in values.items() if value is not None}
    _run(body, name, flags, database, database_secret or "", store, dry_run, form)
    return 0


def _run(
    text: str,
    filename: str,
    flags: dict[str, edge.Given],
    database: str | None,
    database_secret: str,
    store: str | None,
    dry_run: bool,
    form: str,
) -> None:
    from elasticdl.query import needs

    needs.check()
    from elasticdl.query import shown
    from elasticdl.query.run import run

    def print_rows(answer: Answer) -> None:
        if answer.table is not None:
            click.echo(shown.text(answer.table, form), nl=False)

    run(
        text,
        flags=flags,
        tell=lambda line: click.echo(line, err=True),
        filename=filename,
        database=database,
        database_secret=database_secret,
        store=store or None,
        dry_run=dry_run,
        answered=print_rows,
    )


def _read(path: Path) -> str:
    from elasticdl.errors import BadInput

    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"-f {path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"-f {path}: is not text in UTF-8 ({error.reason} at byte {error.start})") from None


sql = SettingsCommand(
    JobKind.TRAIN,
    "sql",
    callback=_sql,
    job_file=None,
    params=(
        click.Argument(["text"], required=False, metavar="[TEXT]"),
        click.Option(["-f", "script"], metavar="FILE.SQL", help="Read the statements from a file."),
        click.Option(
            ["--database"],
            metavar="URL",
            help="duckdb:///FILE, sqlite:///FILE, postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME, maxcompute://PROJECT or "
            "s3://BUCKET/FOLDER. "
            "If not given, the files NAME.csv, NAME.parquet and NAME.json of this directory are tables.",
        ),
        click.Option(
            ["--database_secret"],
            metavar="NAME[/KEY]",
            help="On Kubernetes the Secret with the URL of the database, under the key `url` unless another one is named: pods read the "
            "rows and write the results, and the URL is nowhere else.",
        ),
        click.Option(
            ["--store"],
            metavar="DIR",
            help="Where models are kept; $ELASTICDL_STORE, or a folder of this user, if not given. On Kubernetes a directory on a --volume "
            "that all pods share.",
        ),
        click.Option(
            ["--dry_run"],
            is_flag=True,
            help="Print what would be done, and why; train, write and remove nothing.",
        ),
        click.Option(
            ["-o", "form"],
            type=click.Choice(["table", "csv", "json"]),
            default="table",
            help="How rows are printed; people get the first ones of a table, csv and json have all.",
        ),
    ),
    settings={name: one for name, one in settings_of(JobKind.TRAIN).items() if not why_not(name)},
    short_help="Train and use models with SQL.",
    help="""Train and use models with SQL: rows of a database become a model, and predictions a table.

    What follows the SELECT says what becomes of its rows; all else is sent to the database as it is. Several statements are separated
    by semicolons. Settings are those of `train`, for the jobs of all statements, and win over WITH.

    \b
    Examples:
      elasticdl sql "SELECT * FROM employee LABEL income INTO my_elasticdl_model"
      elasticdl sql "SELECT * FROM employee TO TRAIN wide_deep WITH train.epoch=5 LABEL income INTO incomes" --num_workers=4
      elasticdl sql "SELECT * FROM applicants TO PREDICT scores.income USING incomes" --database=sqlite:///hr.db
      elasticdl sql -f report.sql --store=models --dry_run
      elasticdl sql -f report.sql --image_name=IMAGE --database_secret=hr --store=/data/models \\
          --volume=claim_name=data,mount_path=/data
    """,
)
