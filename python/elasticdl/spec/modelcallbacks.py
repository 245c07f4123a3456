"""The callbacks of a model file that follow the steps of a job, found in its syntax tree: parameter servers have no steps in common.

It finds what is written down: callbacks of Keras, and classes of the file, that `callbacks()` makes in plain statements. Where the
tree can't tell, the worker does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_KERAS = re.compile(r"(?:.+\.)?keras\.callbacks\.(\w+)")
OF_STEPS = frozenset(
    f"on_{what}_{end}" for what in ("batch", "train_batch", "epoch") for end in ("begin", "end")
)
"""Hooks of steps and epochs."""
_PLAIN = (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


def why_refused(name: str) -> str:
    """Return what is said of a callback that follows the steps of a job with parameter servers."""
    return (
        f"{name} is called by step or by epoch, and workers with parameter servers have none in common; leave it "
        "out, or train without --num_ps_pods"
    )


def following_steps(tree: ast.Module, function: ast.AST) -> tuple[int, str] | None:
    """Return line and class of the first callback made by `function` that follows the steps, None if there is none to be seen."""
    file = _File(tree)
    for call in _calls(function):
        name = file.dotted(call.func)
        if name.endswith(".LambdaCallback") and OF_STEPS.isdisjoint(word.arg for word in call.keywords):
            continue
        if file.follows(call.func):
            return call.lineno, name.rpartition(".")[2]
    return None


class _File:
    """What a file's names stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, str] = {}
        self._classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._imported |= dict(_bound(statement))

    def dotted(self, expression: ast.expr) -> str:
        """Return `keras.callbacks.X` for an expression that leads there, its own words for another name, nothing for the rest."""
        if isinstance(expression, ast.Attribute):
            return f"{self.dotted(expression.value)}.{expression.attr}"
        if isinstance(expression, ast.Name):
            return self._imported.get(expression.id, expression.id)
        return ""

    def follows(self, kind: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Tell whether a class is a callback with hooks of steps or epochs."""
        name = self.dotted(kind)
        library = _KERAS.fullmatch(name)
        if library is not None:
            return library[1] != "Callback"
        own = self._classes.get(name)
        if own is None or name in seen:
            return False
        hooks = {one.name for one in own.body if isinstance(one, ast.FunctionDef)}
        return not hooks.isdisjoint(OF_STEPS) or any(self.follows(base, seen | {name}) for base in own.bases)


def _bound(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, f"{statement.module or ''}.{alias.name}"
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
