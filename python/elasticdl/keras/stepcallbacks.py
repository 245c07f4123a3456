"""The callbacks of a model file that follow the steps of a job, found in its syntax tree: parameter servers have no steps in common.

It finds what is written down: callbacks of Keras, and classes of the file or of those of the model zoo that it imports, that
`callbacks()` makes in plain statements. Where the tree can't tell, the worker does.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from elasticdl.spec.zoo import imported_file, parse

_KERAS = re.compile(r"(?:.+\.)?keras\.callbacks\.(\w+)")
OF_STEPS = frozenset(
    f"on_{what}_{end}"
    for what in ("batch", "train_batch", "epoch", "test", "test_batch")
    for end in ("begin", "end")
)
"""Hooks of steps, epochs and evaluations."""
_PLAIN = (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


def why_refused(name: str) -> str:
    """Return what is said of a callback that follows the steps of a job with parameter servers."""
    return (
        f"{name} is called by step, epoch or evaluation, and workers with parameter servers have no steps in common; leave it "
        "out, or train without --num_ps_pods"
    )


def following_steps(file: ZooFile, function: ast.AST) -> tuple[int, str] | None:
    """Return line and class of the first callback made by `function` that follows the steps, None if there is none to be seen."""
    for call in _calls(function):
        name = file.dotted(call.func)
        if name.endswith(".LambdaCallback") and OF_STEPS.isdisjoint(word.arg for word in call.keywords):
            continue
        if file.follows(name):
            return call.lineno, name.rpartition(".")[2]
    return None


class ZooFile:
    """What the names of a model zoo's file stand for."""

    def __init__(self, path: Path, tree: ast.Module, zoo: Path) -> None:
        self.path = path
        self._zoo = zoo
        self._classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
        meanings: dict[str, list[str]] = defaultdict(list)
        for node in ast.walk(tree):
            for name, meaning in _bound(node):
                meanings[name].append(meaning)
        # A name that may mean several things means nothing here, unless Keras comes from one place or the other.
        self._imported = {
            name: found[-1]
            for name, found in meanings.items()
            if found[-1] and (len(set(found)) == 1 or all("keras" in one for one in found))
        }

    def dotted(self, expression: ast.expr) -> str:
        """Return `keras.callbacks.X` for an expression that leads there, its own words for another name, nothing for the rest."""
        if isinstance(expression, ast.Attribute):
            holder = self.dotted(expression.value)
            return f"{holder}.{expression.attr}" if holder else ""
        if isinstance(expression, ast.Name):
            return self._meaning(expression.id)
        return ""

    def _meaning(self, name: str) -> str:
        return self._imported.get(name, name)

    def follows(self, name: str, seen: frozenset[tuple[Path, str]] = frozenset()) -> bool:
        """Tell whether a class is a callback with hooks of steps or epochs."""
        library = _KERAS.fullmatch(name)
        if library is not None:
            return library[1] != "Callback"
        if (self.path, name) in seen:
            return False
        own, seen = self._classes.get(name), seen | {(self.path, name)}
        if own is None:
            other = self._other(name)
            return other is not None and other.follows(other._meaning(name.rpartition(".")[2]), seen)
        hooks = {one.name for one in own.body if isinstance(one, ast.FunctionDef)}
        bases = (self.dotted(base) for base in own.bases)
        return not hooks.isdisjoint(OF_STEPS) or any(self.follows(base, seen) for base in bases)

    def _other(self, name: str) -> ZooFile | None:
        """Return the file of the zoo that a name is imported from."""
        module = name.rpartition(".")[0]
        is_imported = any(f"{name}.".startswith(f"{one}.") for one in self._imported.values())
        path = imported_file(self._zoo, self.path, module) if is_imported and module.strip(".") else None
        if path is None:
            return None
        try:
            return ZooFile(path, parse(path), self._zoo)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None  # who imports it says so


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a node binds, and what those stand for that are imported."""
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from _imported(node)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name, ""


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, and what they stand for."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (f"{statement.module}." if statement.module else "")
            yield alias.asname or alias.name, module + alias.name
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that happen whenever a function is called."""
    match function:
        case ast.FunctionDef(body=body):
            certain: list[ast.AST] = [one for one in body if isinstance(one, _PLAIN)]
        case ast.Lambda(body=value):
            certain = [value]
        case _:
            certain = []
    for node in certain:
        yield from (one for one in ast.walk(node) if isinstance(one, ast.Call))
