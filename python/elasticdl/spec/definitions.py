"""What the files of a model zoo define and import, by their syntax trees: only what is certain is said to be missing.

What a file may bind in ways that its tree does not show (star imports, `__getattr__`, `globals()`, guarded imports) is trusted.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from elasticdl.errors import BadModel
from elasticdl.spec.earlier import successor
from elasticdl.spec.earliernames import is_served
from elasticdl.spec.nearest import nearest
from elasticdl.spec.zoo import imported_file, imported_package, parse, zoo_name

_STAR = "*"
_DYNAMIC = {"globals", "exec", "eval", "vars", "locals", "setattr", "__dict__", "__getattr__"}
"""Names whose use may bind others."""
_FINDERS = {"importlib", "pip", "pkgutil", "site", "subprocess", "sys", "zipimport"}
"""Modules by which a file may change where imports lead."""


def definitions(body: Iterable[ast.stmt]) -> dict[str, ast.AST]:
    """Return what a module's statements bind, the last binding of each name; `*` if anything may be bound."""
    bound: dict[str, ast.AST] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound[statement.name] = statement
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    bound[(alias.asname or alias.name).partition(".")[0]] = statement
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            bound[name.id] = value if name is target else statement
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                bound[name] = value
            case ast.If() | ast.Try() | ast.TryStar() | ast.With() | ast.For() | ast.While() | ast.Match():
                for _, inner in ast.iter_fields(statement):
                    for block in inner if isinstance(inner, list) else []:
                        if isinstance(block, ast.ExceptHandler | ast.match_case):
                            bound |= definitions(block.body)
                        elif isinstance(block, ast.stmt):
                            bound |= definitions([block])
            case _:
                pass
    return bound


def may_define(tree: ast.Module, bound: Iterable[str], name: str) -> bool:
    """Tell whether a file may define a name that is not among those that its statements bind."""
    if _STAR in bound:
        return True
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=id, ctx=ast.Store()) if (
                id == name
            ):  # of a loop, a `with`, `:=`, or a function's `global`
                return True
            case ast.Global(names=names) if name in names:
                return True
            case ast.Name(id=id) | ast.Attribute(attr=id) | ast.FunctionDef(name=id) if id in _DYNAMIC:
                return True
            case ast.Attribute(attr="modules", value=ast.Name(id="sys")):
                return True
    return False


def names_near(bound: dict[str, ast.AST], name: str) -> str:
    """Return the nearest name that a file defines, as a question; imports are none."""
    return nearest(name, (known for known, what in bound.items() if not isinstance(what, ast.Import)))


def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree. Raises OSError, and BadModel for a file that is not Python."""
    try:
        return parse(path)
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        raise BadModel(
            f"{path}{f':{error.lineno}' if error.lineno else ''}: {error.msg}"
            + (f"\n    {line.strip()}" if line else "")
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadModel(f"{path}: is not a Python file: {error}") from None


def check_imports_of(path: Path, tree: ast.Module, zoo: Path, installed: Sequence[str] | None) -> None:
    """Check that what a file of a zoo imports first, and unguarded, is there; the zoo's own files with what they import.

    `installed`: modules of which the job's framework says itself that they are missing; None if workers have other packages than this
    process. Raises BadModel, naming file and line.
    """
    seen = {path}
    todo = [(path, tree)]
    trusts = installed is None
    while todo:
        file, of = todo.pop()
        trusts = trusts or any(_top(name) in _FINDERS for _, name in _modules(ast.walk(of)))
        for statement, module in _modules(of.body):
            if isinstance(statement, ast.ImportFrom):
                target = _target(zoo, file, module)
                if target is not None:
                    if target not in seen:
                        seen.add(target)
                        todo.append((target, parsed(target)))
                    _check_names(file, statement, target)
                    continue
            if not trusts and not statement_is_relative(statement):
                _check_installed(file, statement, module, zoo, installed or ())


def statement_is_relative(statement: ast.stmt) -> bool:
    """Tell whether an import begins with a dot."""
    return isinstance(statement, ast.ImportFrom) and statement.level > 0


def _modules(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the imports among nodes, each with its module as it is written after `from`, with its dots."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node, "." * node.level + (node.module or "")


def _top(module: str) -> str:
    return module.partition(".")[0]


def _target(zoo: Path, importer: Path, module: str) -> Path | None:
    """Return the file of the zoo, a package's `__init__.py` included, that a module leads to; None if something else may be meant."""
    if not module.strip("."):
        return None
    return imported_file(zoo, importer, module) or imported_package(zoo, importer, module)


def _check_names(importer: Path, statement: ast.ImportFrom, target: Path) -> None:
    """Raise BadModel for a name that a file of the zoo does not define, and another one imports from it."""
    tree = parsed(target)
    bound = definitions(tree.body)
    package = target.parent if target.name == "__init__.py" else None
    for alias in statement.names:
        name = alias.name
        if name in (_STAR, *bound) or may_define(tree, bound, name):
            continue
        if package is not None and any((package / one).exists() for one in (name, f"{name}.py")):
            continue
        raise BadModel(
            f"{importer}:{statement.lineno}: imports {name!r} from {target}, which does not define it{names_near(bound, name)}"
        )


def _check_installed(
    path: Path, statement: ast.stmt, module: str, zoo: Path, installed: Sequence[str]
) -> None:
    top = _top(module)
    known = {_top(one) for one in installed}
    if top in known or top == zoo_name(zoo) or is_served(module) or successor(module):
        return
    if (zoo / top).exists() or (zoo / f"{top}.py").exists():
        return
    try:
        if importlib.util.find_spec(top) is not None:
            return
    except (ImportError, ValueError):  # a module without a spec
        return
    near = nearest(top, sorted({*known, *sys.stdlib_module_names, *_installed()}))
    raise BadModel(
        f"{path}:{statement.lineno}: imports {top!r}, which is neither installed nor in the model zoo {zoo}{near}"
    )


def _installed() -> Iterable[str]:
    from importlib.metadata import packages_distributions  # not at the top: it reads all that is installed

    return packages_distributions()
