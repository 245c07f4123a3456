"""Flags made from settings, the settings that they make, and messages for flags that don't exist.

Whatever a flag's value is, it is read by `elasticdl.spec.edge`, not here: job files and Python calls must get the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from elasticdl.spec import edge, refused
from elasticdl.spec.jobspec import REQUIRED, SETTINGS, JobKind, JobSpec, settings_of
from elasticdl.spec.nearest import nearest
from elasticdl.spec.setting import Setting

JOB_FILE = click.Option(
    ["-f", "job_file"], metavar="JOB.YAML", help="Read settings from a YAML file; flags win."
)


class SettingsCommand(click.Command):
    """A command whose flags are the settings of a job of some kind, listed under the headings of their groups."""

    def __init__(
        self,
        kind: JobKind,
        name: str,
        params: Sequence[click.Parameter] = (),
        settings: Mapping[str, Setting] | None = None,
        job_file: click.Parameter | None = JOB_FILE,
        **more: Any,
    ) -> None:
        """Make one.

        Args:
            kind: of its jobs.
            name: of the command.
            params: flags that are no settings.
            settings: fewer than a job of this kind has; the others are hidden, and refused when they are read.
            job_file: the flag for a file of settings; None if the command takes none.
            more: what click takes.
        """
        self._settings = settings_of(kind) if settings is None else settings
        files = () if job_file is None else (job_file,)
        super().__init__(name, params=[*_setting_flags(kind, self._settings), *files, *params], **more)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags."""
        options = {option.name: option for option in self.get_params(ctx)}
        for group, settings in groupby(self._settings.values(), lambda setting: setting.group):
            rows = [options.pop(setting.name).get_help_record(ctx) for setting in settings]
            with formatter.section(group.capitalize()):
                formatter.write_dl([row for row in rows if row is not None])
        with formatter.section("Other"):
            formatter.write_dl(
                [row for option in options.values() if (row := option.get_help_record(ctx)) is not None]
            )


class Commands(click.Group):
    """The group of commands, with an answer for those that are known and not there."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, also one that only refuses."""
        sentence = refused.COMMANDS.get(cmd_name)
        if sentence is not None:
            return _refusing(cmd_name, sentence)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; an unknown name is answered with the nearest known one."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"there is no command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


def _setting_flags(kind: JobKind, settings: Mapping[str, Setting]) -> list[click.Parameter]:
    """Return one flag for each setting, and hidden ones for those that are refused, of other jobs, or accepted without effect."""
    known: list[click.Parameter] = [_flag(kind, setting) for setting in settings.values()]
    answered = {*refused.SETTINGS, *refused.ACCEPTED, *SETTINGS} - {*settings}
    hidden = [hidden_flag(name) for name in sorted(answered)]
    return known + hidden


def spec_from(job_file: str | None, values: dict[str, str | None], kind: JobKind = JobKind.TRAIN) -> JobSpec:
    """Return the settings of a job file and flags, which win; notes about them go to stderr. Raises BadSetting."""
    given = edge.from_file(job_file) if job_file else {}
    given |= {name: edge.Given(value, f"--{name}") for name, value in values.items() if value is not None}
    spec = edge.build(given, kind)
    for note in edge.notes(given, kind):
        click.echo(f"note: {note}", err=True)
    return spec


def spec_of_program(job_file: str | None, values: dict[str, str | None], command: tuple[str, ...]) -> JobSpec:
    """Return the settings of a job with a custom training loop; the job file may have its command. Raises BadSetting."""
    given = edge.from_file(job_file) if job_file else {}
    if command or "job_command" not in given:
        given["job_command"] = edge.Given(command, "COMMAND")
    given |= {name: edge.Given(value, f"--{name}") for name, value in values.items() if value is not None}
    spec = edge.build(given)
    for note in edge.notes(given):
        click.echo(f"note: {note}", err=True)
    return spec


def message(error: click.ClickException) -> str:
    """Return click's message, with the nearest known flag in our words."""
    if isinstance(error, click.NoSuchOption):
        known = (
            [option for parameter in error.ctx.command.params for option in parameter.opts]
            if error.ctx
            else []
        )
        return f"there is no flag {error.option_name}{nearest(error.option_name, known)}"
    text = error.format_message().rstrip(".").replace("integer range", "whole number")
    return text[:1].lower() + text[1:]


def _flag(kind: JobKind, setting: Setting) -> click.Option:
    optional: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.kind.boolean else {}
    return click.Option(
        [f"--{setting.name}"],
        metavar=setting.kind.metavar,
        default=None,
        help=_help(kind, setting),
        **optional,
    )


def hidden_flag(name: str) -> click.Option:
    """Return a flag that help does not show, with or without a value, because all that follows it is an answer."""
    return click.Option([f"--{name}"], is_flag=False, flag_value="", default=None, hidden=True)


def _help(kind: JobKind, setting: Setting) -> str:
    if setting.name in REQUIRED[kind]:
        return f"{setting.what}  [required]"
    default = setting.kind.write(setting.default)
    if default in ("", {}) or default is False:
        return setting.what
    shown = "true" if default is True else f"{default:g}" if isinstance(default, float) else str(default)
    unit = setting.unit.removesuffix("s") if default == 1 else setting.unit
    return f"{setting.what}  [default: {shown} {unit}]".replace(" ]", "]")


def answering(sentences: Mapping[str, str]) -> Callable[[click.Command], click.Command]:
    """Return what adds flags to a command that are answered with sentences."""

    def refuse(ctx: click.Context, flag: click.Parameter, value: str | None) -> None:
        if value is not None and flag.name is not None:
            raise click.UsageError(f"--{flag.name} {sentences[flag.name]}", ctx)

    def add(command: click.Command) -> click.Command:
        for name in sentences:
            flag = hidden_flag(name)
            flag.callback, flag.is_eager, flag.expose_value = refuse, True, False
            command.params.append(flag)
        return command

    return add


def _refusing(name: str, sentence: str) -> click.Command:
    def refuse(rest: tuple[str, ...]) -> None:
        raise click.UsageError(f"`elasticdl {name}` {sentence}")

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        hidden=True,
    )
