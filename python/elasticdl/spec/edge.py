"""From what people write to a `JobSpec`: flags, job files and Python arguments, and every mistake in them by name.

All three ways meet in `build`, so that they accept and refuse the same. Paths are looked at in `check_paths`, which only reads
and leaves nothing behind; what the model file contains is `modelfile.py`'s business.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticdl.errors import BadData, BadSetting
from elasticdl.files import folders
from elasticdl.files.drafts import is_special
from elasticdl.files.reading import is_utf8
from elasticdl.files.result import check_replaceable
from elasticdl.spec import refused
from elasticdl.spec.grammar import WorkerRange
from elasticdl.spec.jobspec import (
    REQUIRED,
    SETTINGS,
    JobKind,
    JobSpec,
    Strategy,
    Work,
    idle_settings,
    settings_of,
    why_not_of_loop,
    why_not_of_tasks,
)
from elasticdl.spec.nearest import nearest
from elasticdl.spec.program import name_of
from elasticdl.spec.readers import database_file, reader_of, with_whole_path
from elasticdl.spec.setting import Setting

_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
_NAME_LIMIT = 63
DATA = ("training_data", "validation_data", "prediction_data")
"""Settings that name data."""
WRITTEN = ("output", "summary", "audit", "data_cache", "checkpoint_dir", "tensorboard_log_dir")
"""Settings that name what a job writes."""
_MODELS, _TABLES = ("saved_model.pb", "model-symbol.json"), "variables.parquet"
"""What each kind of directory with a model has, and every one of weights as Parquet files."""
_WEIGHTS = ("trained_model", "checkpoint_dir_for_init")
"""Settings of which one says with which weights a job evaluates or predicts."""
_COMMANDS = (JobKind.TRAIN, JobKind.EVALUATE, JobKind.PREDICT)
"""Kinds of jobs that have a command of their name."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it.

    Attributes:
        value: text of a flag, value of a job file or of Python.
        where: how its writer calls it: `--seed`, `seed in job.yaml`, `seed=`.
        in_file: it is in a job file, which may also have what only jobs of another kind use.
    """

    value: object
    where: str
    in_file: bool = False


def from_arguments(arguments: Mapping[str, object]) -> dict[str, Given]:
    """Take the keyword arguments of a Python call; None means not given."""
    return {name: Given(value, f"{name}=") for name, value in arguments.items() if value is not None}


def from_file(path: str | os.PathLike[str]) -> dict[str, Given]:
    """Read a job file: one YAML mapping from setting to value. Raises BadSetting naming file and line."""
    import yaml

    shown = os.fspath(path)
    try:
        body = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"-f {shown}: can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise BadSetting(
            f"-f {shown}{line}: is not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    if body is None:
        return {}
    if not isinstance(body, dict) or not all(isinstance(name, str) for name in body):
        raise BadSetting(
            f"-f {shown}: expected one mapping from setting to value, such as `num_workers: 4`, received {_shown(body)}"
        )
    return {
        name.replace("-", "_"): Given(value, f"{name} in {shown}", in_file=True)
        for name, value in body.items()
        if value is not None
    }


def build(given: Mapping[str, Given], kind: JobKind = JobKind.TRAIN) -> JobSpec:
    """Build the settings of a job of some kind. Raises BadSetting for the first mistake, in the words of its author."""
    values: dict[str, Any] = {}
    is_loop = kind is JobKind.TRAIN and "job_command" in given
    if is_loop and "work" in given and _read(SETTINGS["work"], given["work"]) is Work.TASKS:
        kind = JobKind.PROCESS
    own = settings_of(kind)
    known = [*own, *refused.SETTINGS, *refused.ACCEPTED]
    for name, raw in given.items():
        if refused.note(name, raw.value):
            continue
        sentence = refused.SETTINGS.get(name)
        if sentence is not None:
            raise BadSetting(f"{raw.where} {sentence}")
        if name not in SETTINGS:
            raise BadSetting(f"{raw.where} is not a setting{nearest(name, known)}")
        why_not = why_not_of_tasks if kind is JobKind.PROCESS else why_not_of_loop
        if is_loop and (why := why_not(name)):
            raise BadSetting(f"{raw.where}: {why}; leave it out")
        value = _read(SETTINGS[name], raw)
        if kind is not JobKind.TRAIN and raw.in_file and _other_weights(given, name):
            continue  # the file is that of the training, which may have gone on from a checkpoint
        if name in own:
            values[name] = value
        elif kind is JobKind.TRAIN and not raw.in_file and name in refused.OF_TRAINED:
            raise BadSetting(f"{raw.where} {refused.OF_TRAINED[name]}")
        elif not raw.in_file and name not in idle_settings(kind):
            users = " and ".join(f"`elasticdl {one}`" for one in _COMMANDS if name in settings_of(one))
            raise BadSetting(f"{raw.where} is a setting of {users}, and `elasticdl {kind}` has no use for it")
        if isinstance(value, str) and not is_utf8(value):
            raise BadSetting(f"{raw.where}: {value!r} is not text in UTF-8; rename what it names")
    if is_loop:
        _check_command(values["job_command"], given["job_command"])
        values.setdefault("model_zoo", "")
    for name in () if is_loop else REQUIRED[kind]:
        if values.get(name, "") == "":
            raise BadSetting(f"--{name} is required. {SETTINGS[name].what}")
    if values.get("distribution_strategy") is Strategy.LOCAL:
        values.setdefault("num_workers", WorkerRange(1, 1))
    spec = JobSpec(kind=kind, **values)
    return _named(spec, given["job_name"].where if "job_name" in given else "--job_name")


def _check_command(command: tuple[str, ...], raw: Given) -> None:
    if not command or not command[0]:
        raise BadSetting(
            f"{raw.where}: there is no command; write that of the program, as in `elasticdl run -- python train.py`"
        )
    if any("\0" in word or not is_utf8(word) for word in command):
        raise BadSetting(f"{raw.where}: the command {_shown(command)} is not text in UTF-8")


def _other_weights(given: Mapping[str, Given], name: str) -> bool:
    """Tell whether a setting says where weights are, and a flag says it by another one."""
    flags = (other for other in _WEIGHTS if other in given and not given[other].in_file)
    return name in _WEIGHTS and any(other != name for other in flags)


def notes(given: Mapping[str, Given], kind: JobKind = JobKind.TRAIN) -> list[str]:
    """Return a line for each setting that `build` accepts although it changes nothing."""
    idle = idle_settings(kind)
    said = [
        (raw.where, refused.IDLE if name in idle and not raw.in_file else refused.note(name, raw.value))
        for name, raw in given.items()
    ]
    return [f"{where} {note}" for where, note in said if note]


def check_zoo(spec: JobSpec) -> None:
    """Check that the model zoo and the working directory are there, before files are looked at. Raises BadSetting."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise BadSetting(
            "the working directory has been removed, and paths are looked for from there; change to another one"
        ) from None
    if spec.job_command and not spec.model_zoo:
        return  # its program runs where it was called
    if not Path(spec.model_zoo).is_dir():
        raise BadSetting(f"--model_zoo: {spec.model_zoo!r} is not a directory (looked from {Path.cwd()})")


def check_paths(spec: JobSpec, *, custom_reader: bool, directory: bool) -> None:
    """Check that what the job reads is there and that what it writes can be written, before anything is started.

    Args:
        spec: the job.
        custom_reader: the model file has a reader of its own, so only that knows what the data's names mean.
        directory: the result is a directory, and not one file.

    Raises BadSetting, or BadData if there is no data.
    """
    _check_read(spec, custom_reader=custom_reader)
    check_summary(spec)
    if spec.audit and Path(spec.audit).is_dir() and any(Path(spec.audit).iterdir()):
        raise BadSetting(
            f"--audit: {spec.audit!r} is not empty; the audit of a job needs a directory of its own, so name a new one"
        )
    _check_written(spec, directory=directory)
    check_apart(spec, WRITTEN, os.path.realpath)
    if not custom_reader:
        _check_no_data(spec, directory=directory)


def _check_no_data(spec: JobSpec, *, directory: bool) -> None:
    """Check that no file that the job writes lies among its data: the next job would read it as such. Raises BadSetting."""
    one_file = not directory and spec.kind not in (JobKind.PREDICT, JobKind.PROCESS)
    files = {"output": spec.path_written if one_file else "", "summary": spec.summary}
    for flag, path in files.items():
        for name in DATA:
            origin = getattr(spec, name)
            if path and origin and os.path.realpath(Path(path).parent) == os.path.realpath(origin):
                raise BadSetting(
                    f"--{flag}: {getattr(spec, flag)!r} lies in the directory of --{name}, so the next job would read it as data; name "
                    "another place"
                )


def check_volumes(spec: JobSpec, *, custom_reader: bool, directory: bool) -> None:
    """Check in the first pod of a job what `check_paths` can't see where it was submitted; the arguments are those. Raises the same."""
    _check_read(spec, custom_reader=custom_reader)
    _check_written(spec, directory=directory)


def _check_read(spec: JobSpec, *, custom_reader: bool) -> None:
    for name in DATA:
        if not custom_reader and getattr(spec, name):
            _check_data(name, getattr(spec, name), spec.data_reader_params)
    if spec.trained_model:
        check_trained_model(spec.trained_model)


def _check_written(spec: JobSpec, *, directory: bool) -> None:
    if spec.output and spec.kind in (JobKind.PREDICT, JobKind.PROCESS):
        _check_parts(spec)
    elif spec.output:
        check_output(spec.output, directory=directory)
    for name in ("audit", "data_cache", "checkpoint_dir", "tensorboard_log_dir"):
        if getattr(spec, name):
            check_target(name, Path(getattr(spec, name)), directory=True, beside=False)
    if spec.tensorboard_log_dir:
        _check_tensorboard(spec)


def check_trained_model(path: str) -> None:
    """Check that there is a trained model, as far as its name and that of what is in it tell. Raises BadSetting."""
    file = Path(path)
    if not file.exists():
        raise BadSetting(f"--trained_model: {path!r} does not exist (looked from {Path.cwd()})")
    if not os.access(file, os.R_OK | os.X_OK if file.is_dir() else os.R_OK):
        raise BadSetting(f"--trained_model: {path!r} can't be read: permission denied")
    if (file / _TABLES).exists():
        raise BadSetting(
            f"--trained_model: {path!r} has the weights of a model as Parquet files (--output_format=parquet), of which no model can be "
            "built; give the job's checkpoint with --checkpoint_dir_for_init, or what `elasticdl export CHECKPOINT` makes of it in another "
            "format"
        )
    if file.is_dir() and not any((file / name).exists() for name in _MODELS):
        raise BadSetting(
            f"--trained_model: {path!r} is a directory, and no SavedModel or Gluon model; name what `elasticdl train` wrote to "
            "--output, or a checkpoint with --checkpoint_dir_for_init"
        )


def _check_parts(spec: JobSpec) -> None:
    """Check that a directory of files of tasks, or the file of a database, can be made; what is there is never replaced.

    Of a database only its driver knows more.
    """
    output, table = spec.output, spec.output_table
    if table is not None:
        if table.file:
            check_target("output", Path(table.file), directory=False)
        return
    if os.path.lexists(output):
        what = "predictions" if spec.kind is JobKind.PREDICT else "the files of tasks"
        raise BadSetting(
            f"--output: {output!r} exists; {what} go to a new directory, so name another one, or remove it"
        )
    check_target("output", Path(output), directory=True)


def check_output(output: str, *, directory: bool) -> None:
    """Check that a result, one file or a directory, can be written. Raises BadSetting."""
    check_target("output", Path(output), directory=directory)
    try:
        check_replaceable(Path(output))
    except OSError as error:
        raise BadSetting(
            f"--output: {output!r} can't be replaced: {error.strerror}; name a new directory"
        ) from None


def _check_tensorboard(spec: JobSpec) -> None:
    if importlib.util.find_spec("tensorboardX") is None:
        remedy = (
            "name it in the requirements.txt of the model zoo and build the image again"
            if spec.on_kubernetes
            else "install elasticdl[tensorboard]"
        )
        raise BadSetting(
            f"--tensorboard_log_dir: the package tensorboardX is not installed; {remedy}, or leave this out"
        )


def check_summary(spec: JobSpec) -> None:
    """Check that the summary can be written, here whatever the job's platform. Raises BadSetting."""
    if spec.summary:
        check_target("summary", Path(spec.summary), directory=False)


def absolute(spec: JobSpec) -> JobSpec:
    """Return the job with absolute paths, so that its processes may live in another directory. Raises BadSetting."""

    def full(path: str) -> str:
        whole = os.path.abspath(path) if path else ""  # noqa: PTH100 (links must keep their names)
        if not is_utf8(whole):
            raise BadSetting(f"the working directory of {path!r} is not text in UTF-8: {whole!r}; rename it")
        return whole

    def full_data(data: str) -> str:
        if "://" in data:
            return with_whole_path(data, full)
        return full(data) if os.path.lexists(data) or glob.has_magic(data) else data

    return replace(
        spec,
        model_zoo=full(spec.model_zoo),
        training_data=full_data(spec.training_data),
        validation_data=full_data(spec.validation_data),
        prediction_data=full_data(spec.prediction_data),
        trained_model=full(spec.trained_model),
        output=with_whole_path(spec.output, full) if spec.output_table is not None else full(spec.output),
        summary=full(spec.summary),
        audit=full(spec.audit),
        data_cache=full(spec.data_cache),
        tensorboard_log_dir=full(spec.tensorboard_log_dir),
        checkpoint_dir=full(spec.checkpoint_dir),
        checkpoint_dir_for_init=full(spec.checkpoint_dir_for_init),
    )


def _read(setting: Setting, raw: Given) -> Any:
    if setting.kind.document and isinstance(raw.value, str) and _is_file_name(raw.value):
        raw = Given(_text_of(raw), f"{raw.where}={raw.value}")
    try:
        return setting.kind.read(raw.value)
    except (TypeError, ValueError) as error:
        message = f"{raw.where}: expected {setting.kind.expected}, received {_shown(raw.value)}"
        # The kinds' own readers raise bare errors; a grammar says which piece is wrong, `int` only repeats the value.
        detail = str(error) if not str(error).startswith(("invalid literal", "could not convert")) else ""
        if setting.kind.choices:
            detail = nearest(str(raw.value), setting.kind.choices).removeprefix("; ")
        raise BadSetting(message + (f"; {detail}" if detail else "")) from None


def _is_file_name(text: str) -> bool:
    """Tell a file's name from a document: that is a mapping, so it has a colon before a space or an end of line, or braces."""
    return bool(text.strip()) and not text.lstrip().startswith("{") and not re.search(r":(\s|$)", text)


def _text_of(raw: Given) -> str:
    try:
        return Path(str(raw.value)).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"{raw.where}: {raw.value!r} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{raw.where}: {raw.value!r} is not text in UTF-8") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _named(spec: JobSpec, where: str) -> JobSpec:
    name = spec.job_name or _name_of(spec)
    if len(name) > _NAME_LIMIT or not name[:1].isalnum() or not set(name) <= set(_NAME):
        raise BadSetting(
            f"{where}: expected at most {_NAME_LIMIT} letters, digits, '-', '_' and '.', beginning with a letter or digit, "
            f"received {_shown(name)}"
        )
    return replace(spec, job_name=name)


def _name_of(spec: JobSpec) -> str:
    """Return the model's or the program's name, with what is done with it unless it is trained."""
    if spec.job_command:
        stem = Path(name_of(spec.job_command)).stem.replace("_", "-")
        name = "".join(letter if letter in _NAME else "-" for letter in stem)
        return name.strip("-.")[:_NAME_LIMIT] or "program"
    what = "" if spec.kind is JobKind.TRAIN else f"-{spec.kind}"
    name = spec.model_def.split(".")[-2].strip("_").replace("_", "-")
    return name[: _NAME_LIMIT - len(what)] + what


def _check_data(name: str, origin: str, params: Mapping[str, Any]) -> None:
    """Check that there is data for its readers, with their parameters. Raises BadData or BadSetting."""
    if reader_of(origin):
        file = database_file(origin)
        if file and not Path(file).is_file():
            raise BadData(
                f"--{name}: there is no database {file!r} (looked from {Path.cwd()}); an absolute path has four slashes, as in sqlite:////data/x.db"
            )
        return
    path = Path(origin)
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise BadData(f"--{name}: the directory {origin!r} can't be read: permission denied")
    try:
        # Of such a directory the annotations say what is data.
        if path.is_dir() and ("annotations" in params or folders.is_voc(path)):
            return
        if folders.class_folders(origin, params.get("classes", ())):
            return
        files = folders.find(origin)
    except BadData as error:
        raise BadData(f"--{name}: {error}") from None
    except OSError as error:
        raise BadData(f"--{name}: can't look for data at {origin!r}: {error.strerror}") from None
    if glob.has_magic(origin) and not os.path.lexists(origin):
        if not files and (instead := folders.advice(origin)):
            raise BadData(f"--{name}: only directories match {origin!r}: {instead}")
        if not files:
            raise BadData(f"--{name}: no file matches {origin!r} (looked from {Path.cwd()})")
        return
    if not path.exists():
        raise BadData(f"--{name}: {origin!r} does not exist (looked from {Path.cwd()})")
    if path.is_dir() and not any(path.iterdir()):
        raise BadData(f"--{name}: the directory {origin!r} is empty")
    if path.is_dir() and not files and (instead := folders.advice(origin)):
        raise BadData(f"--{name}: no file in the directory {origin!r}: {instead}")
    if path.is_file() and path.stat().st_size == 0:
        raise BadData(f"--{name}: the file {origin!r} is empty")
    if not os.access(path, os.R_OK):
        raise BadData(f"--{name}: {origin!r} can't be read: permission denied")


def check_apart(spec: JobSpec, flags: Iterable[str], whole: Callable[[str], str]) -> None:
    """Check that what a job writes has places apart, and that nothing lies in the result, which replaces what has its name.

    Args:
        spec: the job.
        flags: those of `WRITTEN` that name places of one file system.
        whole: makes one path of all that lead to a place.

    Raises BadSetting.
    """
    targets = _targets(spec, flags, whole)
    for other, path in targets.items():
        for flag, target in targets.items():
            if flag != other and _meet(target, other, path):
                raise BadSetting(
                    f"--{flag}: {getattr(spec, flag)!r} is --{other} or lies in it; name another place"
                )


def check_apart_from(spec: JobSpec, other: JobSpec, name: str) -> None:
    """Check that a job writes nothing where another one does that runs: each would remove what the other has written.

    Args:
        spec: the job.
        other: the settings of the other one, on the same machine.
        name: its name.

    Raises BadSetting.
    """
    # Jobs share tables made of data, each in a folder of its own, and a database, in which each has a table of its own.
    flags = [flag for flag in WRITTEN if flag != "data_cache"]
    if spec.output_table is not None and other.output_table is not None and spec.output != other.output:
        flags.remove("output")
    theirs = _targets(other, flags, os.path.realpath)
    for flag, target in _targets(spec, flags, os.path.realpath).items():
        for what, path in theirs.items():
            if _meet(target, what, path) or _meet(path, flag, target):
                raise BadSetting(
                    f"--{flag}: the job {name}, which runs, writes to {str(path)!r} (--{what}); name another place, or wait until "
                    f"that job has ended (`elasticdl stop {name}` ends it)"
                )


def _targets(spec: JobSpec, flags: Iterable[str], whole: Callable[[str], str]) -> dict[str, Path]:
    paths = {flag: spec.path_written if flag == "output" else getattr(spec, flag) for flag in flags}
    return {flag: Path(whole(path)) for flag, path in paths.items() if path}


def _meet(target: Path, flag: str, path: Path) -> bool:
    """Tell whether a place is that of a flag, or lies in the result."""
    return target == path or (flag == "output" and path in target.parents)


def check_target(name: str, target: Path, *, directory: bool, beside: bool = True) -> None:
    """Check that `target` can be written by writing there: permission bits say too little (read-only mounts, quotas).

    What is written `beside` it first needs the directory above, which for a volume of its own nobody may write to.
    """
    if target.is_dir() and not directory:
        raise BadSetting(f"--{name}: {str(target)!r} is a directory; name a file in it")
    if is_special(target):
        raise BadSetting(
            f"--{name}: {str(target)!r} is a device, a pipe or a socket, which a file would replace; name another place"
        )
    if target.exists() and not target.is_dir() and directory:
        raise BadSetting(f"--{name}: {str(target)!r} is a file; name a directory")
    folder = target.absolute().parent if beside else target.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise BadSetting(
            f"--{name}: {str(target)!r} can't be written: no file can be made in {folder} by the user {os.geteuid()} ({error.strerror})"
        ) from None
