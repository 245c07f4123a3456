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
from elasticdl.spec.jobspec import PARQUET, JobKind, JobSpec
from elasticdl.spec.nearest import nearest
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
    # `also`, where a framework has it: modules that its files import besides, though they alone are a sign of another framework
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
    modules = {
        name: matched
        for name in names()
        if (
            matched := {
                module
                for module in find(name).imports
                if any(f"{one}.".startswith(f"{module}.") for one in imported)
            }
        )
    }
    shared = {name: set(getattr(find(name), "also", ())) for name in modules}
    found = [
        name
        for name, matched in modules.items()
        if not any(matched <= shared[other] for other in modules if other != name)
    ]
    if len(found) > 1:
        raise BadModel(f"{path}: imports {' and '.join(found)}; say which trains it: --framework={found[0]}")
    return find(found[0] if found else DEFAULT)


def _imports(zoo: Path, path: Path, seen: set[Path]) -> Iterator[str]:
    """Yield what a file imports, or reaches below an import by dots, and the files of the zoo that it imports.

    A file that can't be read imports nothing.
    """
    seen.add(path)
    try:
        tree = parse(path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the check of the model file says so
    yield from _reached(tree)
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


def _reached(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names below imported modules, such as `tensorflow.keras.layers.Dense`; what is tried has another way."""
    modules = {
        alias.asname or alias.name.partition(".")[0]: alias.name
        if alias.asname
        else alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    modules |= {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    tried = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in modules and id(node) not in tried:
            yield ".".join([modules[inner.id], *reversed(parts)])


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
            instead = (
                f"use --output_format={one.name}, or name" if spec.kind is not JobKind.PREDICT else "name"
            )
            raise BadSetting(
                f"--output: {output!r} is the name of a file in the format {one.name}, but --output_format={form.name} writes a "
                f"directory; {instead} a directory"
            )
    return form
