"""What a framework says about its model files without importing its library, and how the framework of a job is found.

Frameworks are packages that name themselves in the entry point group `elasticdl.frameworks`, those of this package too; how one trains
is the contract in `worker/contract/`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from elasticdl.errors import BadModel, BadSetting
from elasticdl.spec import entrypoints
from elasticdl.spec.edge import nearest
from elasticdl.spec.jobspec import PARQUET, JobKind, JobSpec
from elasticdl.spec.zoo import imported_file, parse, resolve

GROUP = "elasticdl.frameworks"
"""Entry point group: name of a framework → an object with everything that `Framework` in `worker/contract/framework.py` has."""
AUTO = "auto"
DEFAULT = "keras"
"""The framework of model files whose imports don't say it."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of a model file.

    Attributes:
        setting: the setting that names it.
        arguments: names of the positional arguments that it is called with.
        required: a file has to define it.
        is_function: it is always a function; else it may be a value of another kind.
    """

    setting: str
    arguments: tuple[str, ...] = ()
    required: bool = True
    is_function: bool = True


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A way to write a trained model.

    Attributes:
        name: value of `--output_format`.
        suffix: with which the name of its file ends; empty if it is a directory.
    """

    name: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """A symbol that a model file defines.

    Attributes:
        path: the file.
        tree: its syntax tree.
        node: the statement, or the value, that defines the symbol.
    """

    path: Path
    tree: ast.Module
    node: ast.AST


class ModelFileRules(Protocol):
    """What a framework expects of model files and settings; nothing here imports its library."""

    name: str
    """Value of `--framework`."""
    imports: Sequence[str]
    """Modules, with dots, by whose import a model file is known to be of this framework."""
    symbols: Sequence[Symbol]
    """Of a model file, besides the model function and a custom reader, which all frameworks have."""
    formats: Sequence[OutputFormat]
    """Ways to write a trained model; the first is used unless a job says otherwise."""
    has_ps: bool
    """Whether it trains with parameter servers."""
    # `variant(spec)`, where a framework has it: the name of another one that the job's environment chooses instead, or its own
    # `model_arguments`, where a framework has it: names of arguments that a model function gets if it takes them, besides its parameters

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Raise BadInput for what syntax trees and settings show to be wrong; `defined`: the symbols found, by setting."""


def names() -> list[str]:
    """Return the names of the frameworks that are installed."""
    return entrypoints.names(GROUP)


def find(name: str) -> Any:
    """Return the framework of that name. Raises BadSetting if there is none, or if it can't be loaded."""
    found = entrypoints.find(GROUP, name, "framework")
    if found is None:
        raise BadSetting(
            f"--framework: {name!r} is not installed{nearest(name, names())}; there are {', '.join(names()) or 'none'}"
        )
    return found


def framework_of(spec: JobSpec) -> Any:
    """Return a job's framework: the one it names, or the one that the imports of its model file lead to; or a variant of it.

    Raises BadSetting, or BadModel if the file imports more than one.
    """
    found = _framework_of(spec)
    return find(found.variant(spec)) if hasattr(found, "variant") else found


def recorded(spec: JobSpec) -> JobSpec:
    """Return the job with the name of its framework if its environment has chosen that: processes elsewhere may have another one."""
    found, named = framework_of(spec), _framework_of(spec)
    return spec if found.name == named.name else replace(spec, framework=found.name)


def _framework_of(spec: JobSpec) -> Any:
    if spec.framework != AUTO:
        return find(spec.framework)
    path, _ = resolve(spec.model_zoo, spec.model_def)
    imported = set(_imports(Path(spec.model_zoo), path, set()))
    found = [name for name in names() if imported and _is_of(find(name), imported)]
    if len(found) > 1:
        raise BadModel(f"{path}: imports {' and '.join(found)}; say which trains it: --framework={found[0]}")
    return find(found[0] if found else DEFAULT)


def _is_of(framework: ModelFileRules, imported: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in framework.imports for name in imported)


def _imports(zoo: Path, path: Path, seen: set[Path]) -> Iterator[str]:
    """Yield what a file imports, and the files of the zoo that it imports; a file that can't be read imports nothing."""
    seen.add(path)
    try:
        tree = parse(path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the check of the model file says so
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules = [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = "." * node.level + (node.module or "")
                within = base if base.endswith(".") else f"{base}."
                modules = [base, *(within + alias.name for alias in node.names)]
            case _:
                continue
        for module in modules:
            file = imported_file(zoo, path, module) if module.strip(".") else None
            if file is None:
                yield module
            elif file not in seen:
                yield from _imports(zoo, file, seen)


def output_format(spec: JobSpec, framework: ModelFileRules) -> OutputFormat:
    """Return how a job's result is written. Raises BadSetting for a format that its framework does not have."""
    if spec.kind is JobKind.PREDICT:
        return OutputFormat(spec.output_format or PARQUET)
    formats: list[OutputFormat] = [
        *framework.formats,
        *([OutputFormat(PARQUET)] if spec.num_ps_pods else []),
    ]
    if not spec.output_format:
        return formats[0]
    for known in formats:
        if known.name == spec.output_format.lower():
            return known
    known_names = [one.name for one in formats]
    raise BadSetting(
        f"--output_format: expected {', '.join(known_names)}, received {spec.output_format!r}{nearest(spec.output_format, known_names)}"
    )


def check_output_name(spec: JobSpec, framework: ModelFileRules) -> OutputFormat:
    """Check that the name of a job's result fits what is written under it, and return its format. Raises BadSetting."""
    form, output = output_format(spec, framework), spec.output
    if not output or (form.suffix and output.endswith(form.suffix)):
        return form
    directory = next((one for one in framework.formats if not one.suffix), None)
    if form.suffix:
        instead = f", or use --output_format={directory.name} for a directory" if directory else ""
        named = output.rstrip("/") if Path(output).name not in ("", "..") else f"{output.rstrip('/')}/model"
        raise BadSetting(
            f"--output: the name of a file in the format {form.name} ends in {form.suffix}, received {output!r}; write "
            f"--output={named}{form.suffix}{instead}"
        )
    for one in framework.formats:
        if one.suffix and output.endswith(one.suffix):
            raise BadSetting(
                f"--output: {output!r} is the name of a file in the format {one.name}, but --output_format={form.name} writes a "
                f"directory; use --output_format={one.name}, or name a directory"
            )
    return form
