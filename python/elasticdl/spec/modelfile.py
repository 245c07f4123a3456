"""The check of a user's model file by its syntax tree alone: in milliseconds, without importing it or any framework.

It finds what would end a job seconds later in every worker: a file that does not parse, a symbol that is missing, parameters
that don't fit. It does not judge what only running shows, and where the tree can't tell (decorators, star imports, classes
with foreign bases) it trusts the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import BadModel, BadSetting
from elasticdl.spec.definitions import check_imports_of, definitions, may_define, names_near, parsed
from elasticdl.spec.earlier import check_imports
from elasticdl.spec.framework import (
    Definition,
    ModelFileRules,
    OutputFormat,
    check_output_name,
    framework_of,
)
from elasticdl.spec.jobspec import SETTINGS, JobKind, JobSpec
from elasticdl.spec.nearest import nearest
from elasticdl.spec.zoo import resolve

_RETURNING = {"model_def", "loss", "optimizer", "feed"}
"""Settings whose functions return something, whatever the framework."""
_LITERALS = {ast.List: "list", ast.Tuple: "tuple", ast.Dict: "dict", ast.Set: "set", ast.JoinedStr: "string"}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What the check found.

    Attributes:
        path: the model's file.
        symbol: the model's symbol in it.
        found: of the settings that name symbols, those whose symbol is defined.
        format: how the result is written.
    """

    path: Path
    symbol: str
    found: frozenset[str]
    format: OutputFormat

    @property
    def custom_reader(self) -> bool:
        """Tell whether the file has a data reader of its own."""
        return "custom_data_reader" in self.found


@dataclass(frozen=True, slots=True)
class _Call:
    """How a symbol is going to be called.

    Attributes:
        shown: the call as it appears in messages.
        positional: number of positional arguments.
        keywords: names of keyword arguments.
        offered: names of arguments that it gets if it takes them.
    """

    shown: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()


def locate(spec: JobSpec, setting: str) -> tuple[Path, str]:
    """Return file and symbol of one of the settings that name symbols; a plain name lies in the model's own file."""
    name: str = getattr(spec, setting)
    if setting == "model_def" or "." in name:
        return resolve(spec.model_zoo, name)
    return resolve(spec.model_zoo, spec.model_def)[0], name


def check_model_file(spec: JobSpec) -> ModelFile:
    """Check the file that `model_def` names, the files of dotted symbols, and what their framework says of the settings.

    Raises BadModel naming file, line and what was expected, or BadSetting.
    """
    framework: ModelFileRules = framework_of(spec)
    trees: dict[Path, ast.Module] = {}
    files: dict[Path, dict[str, ast.AST]] = {}
    found: dict[str, Definition] = {}
    functions = {"model_def", *(one.setting for one in framework.symbols if one.is_function)}
    elsewhere = spec.on_kubernetes or "PYTHONPATH" in spec.envs  # workers have packages of their own
    for setting, call, required in _calls(spec, framework):
        path, symbol = locate(spec, setting)
        if path not in files:
            trees[path] = _parse(path, setting, spec)
            check_imports(path, trees[path], Path(spec.model_zoo))
            check_imports_of(
                path, trees[path], Path(spec.model_zoo), None if elsewhere else framework.imports
            )
            files[path] = definitions(trees[path].body)
        if symbol in files[path]:
            definition = files[path][symbol]
            if _is_last(trees[path], definition) and (
                setting in functions or isinstance(definition, ast.FunctionDef)
            ):
                _check_kind(path, symbol, setting, definition, call.shown)
            _check_call(path, symbol, files[path][symbol], call)
        elif required and not may_define(trees[path], files[path], symbol):
            near = names_near(files[path], symbol)
            if setting == "model_def" and symbol == "py":
                near = "; name the model function in it, not the file's suffix"
            raise BadModel(f"{path}: does not define {symbol!r} (--{setting}){near}; expected {call.shown}")
        else:
            continue
        found[setting] = Definition(path, trees[path], files[path][symbol])
    framework.check(spec, found)  # which may say more about what it can't do
    if spec.num_ps_pods and not framework.has_ps:
        raise BadModel(
            f"{locate(spec, 'model_def')[0]}: --num_ps_pods={spec.num_ps_pods}: {framework.name} does not train with parameter servers"
        )
    if spec.kind is not JobKind.TRAIN and not hasattr(framework, "trained"):
        raise BadModel(
            f"{locate(spec, 'model_def')[0]}: {framework.name} does not {spec.kind} with trained models; it only trains them"
        )
    if spec.kind is JobKind.PREDICT and not spec.output and "prediction_outputs_processor" not in found:
        raise BadSetting(
            "--output is required: it names the directory of the predictions; or define the class "
            f"{spec.prediction_outputs_processor} in the model file, which gets them"
        )
    form = check_output_name(spec, framework)
    path, symbol = locate(spec, "model_def")
    return ModelFile(path, symbol, frozenset(found), form)


def _calls(spec: JobSpec, framework: ModelFileRules) -> Iterable[tuple[str, _Call, bool]]:
    """Yield setting, way of calling its symbol, and whether it must be defined."""

    def asked(setting: str) -> bool:
        return bool(getattr(spec, setting) != SETTINGS[setting].default)

    model = spec.model_def.rpartition(".")[2]
    offered = tuple(getattr(framework, "model_arguments", ()))
    yield (
        "model_def",
        _Call(f"{model}({_keywords(spec.model_params)})", keywords=tuple(spec.model_params), offered=offered),
        True,
    )
    for symbol in framework.symbols:
        shown = f"{symbol.setting}({', '.join(symbol.arguments)})"
        yield symbol.setting, _Call(shown, len(symbol.arguments)), symbol.required or asked(symbol.setting)
    reader = ("records_per_task", *spec.data_reader_params)
    shown = f"custom_data_reader(data_origin, records_per_task=None{', ' if spec.data_reader_params else ''}"
    shown += f"{_keywords(spec.data_reader_params)})"
    yield "custom_data_reader", _Call(shown, 1, reader), asked("custom_data_reader")


def _keywords(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _parse(path: Path, setting: str, spec: JobSpec) -> ast.Module:
    try:
        return parsed(path)
    except OSError as error:
        wanted = getattr(spec, setting)
        near = nearest(path.stem, (other.stem for other in path.parent.glob("*.py")))
        if path.with_suffix("").is_dir():
            inside = sorted(
                other.stem for other in path.with_suffix("").glob("*.py") if other.stem != "__init__"
            )
            shown = f": {', '.join(inside)}" if inside else ""
            near = f"; {path.with_suffix('')} is a directory, of which a file is named, too{shown}"
        raise BadModel(
            f"{path}: {error.strerror or error}; --{setting}={wanted} is looked for there "
            f"(--model_zoo={spec.model_zoo}){near}"
        ) from None


def _check_kind(path: Path, symbol: str, setting: str, definition: ast.AST, expected: str) -> None:
    """Raise BadModel for a definition that is certainly none of a function, or of one that returns something."""
    where = f"{path}:{getattr(definition, 'lineno', 1)}: {symbol}"
    match definition:
        case ast.Constant(value=None):
            return
        case ast.Constant(value=value):
            raise BadModel(f"{where} is {value!r:.60}, expected {expected}")
        case ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.JoinedStr():
            raise BadModel(f"{where} is a {_LITERALS[type(definition)]}, expected {expected}")
        case ast.AsyncFunctionDef() if setting == "model_def" and not definition.decorator_list:
            raise BadModel(f"{where} is a coroutine (async def), expected {expected}")
        case ast.FunctionDef() if setting in _RETURNING and not definition.decorator_list:
            own = list(_own_nodes(definition))
            if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
                return
            if not _is_stub(definition) and not any(
                isinstance(node, ast.Return) and node.value is not None for node in own
            ):
                raise BadModel(f"{where} never returns a value, expected {expected}, which returns one")


def _is_last(tree: ast.Module, definition: ast.AST) -> bool:
    """Tell whether a definition, the last one of its name, is made whatever happens: not in an `if`, a `try` or a loop."""
    return any(definition in (statement, getattr(statement, "value", None)) for statement in tree.body)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield what belongs to a function itself, not to those inside of it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _is_stub(function: ast.FunctionDef) -> bool:
    """Tell whether a function has no other body than `...`, as in a sketch."""
    match function.body:
        case [ast.Expr(value=ast.Constant(value=value))]:
            return value is ...
    return False


def _check_call(path: Path, symbol: str, definition: ast.AST, call: _Call) -> None:
    """Raise BadModel if `definition` can't be called so, as far as the tree tells."""
    parameters = _parameters(definition, call)
    if parameters is None:
        return
    arguments, skip = parameters
    ordered = [*arguments.posonlyargs, *arguments.args][skip:]
    optional = (
        {argument.arg for argument in ordered[len(ordered) - len(arguments.defaults) :]}
        if arguments.defaults
        else set()
    )
    taken = {argument.arg for argument in ordered[: call.positional]}
    by_name = {argument.arg for argument in [*arguments.args, *arguments.kwonlyargs]} - taken
    missing = [
        argument.arg
        for argument in ordered[call.positional :]
        if argument.arg not in optional and argument.arg not in (*call.keywords, *call.offered)
    ]
    missing += [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None and argument.arg not in (*call.keywords, *call.offered)
    ]
    unknown = [name for name in call.keywords if name not in by_name and arguments.kwarg is None]
    if len(ordered) < call.positional and arguments.vararg is None:
        problem = f"takes {len(ordered)} of the {call.positional} arguments"
    elif missing:
        problem = f"needs {', '.join(map(repr, missing))}, which nothing gives"
    elif unknown:
        problem = f"does not take {', '.join(map(repr, unknown))}" + nearest(unknown[0], sorted(by_name))
    else:
        return
    line = getattr(definition, "lineno", 1)
    shown = f"{symbol}({ast.unparse(arguments)})"
    raise BadModel(f"{path}:{line}: expected {call.shown}, received {shown}, which {problem}")


def _parameters(definition: ast.AST, call: _Call) -> tuple[ast.arguments, int] | None:
    """Return a definition's parameters and how many of the first are bound already, or None if the tree can't tell."""
    match definition:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if not definition.decorator_list:
            return definition.args, 0
        case ast.Lambda():
            return definition.args, 0
        case ast.ClassDef() if (
            not call.positional and not definition.decorator_list and not definition.keywords
        ):
            for inner in definition.body:
                if (
                    isinstance(inner, ast.FunctionDef)
                    and inner.name == "__init__"
                    and not inner.decorator_list
                ):
                    return inner.args, 1
            return None
        case _:
            return None
