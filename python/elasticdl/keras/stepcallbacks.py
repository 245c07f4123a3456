"""The callbacks that are not possible with parameter servers, and how they are found in a model file's syntax tree.

Workers have no steps in common there: callbacks hear of epochs and evaluations, at barriers, and of no batch. What is written down is
found: callbacks of Keras, and classes of the file or of those of the model zoo that it imports, that `callbacks()` makes in plain
statements. Where the tree can't tell, the worker does.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from elasticdl.spec.zoo import imported_file, parse

_KERAS = re.compile(r"(?:.+\.)?keras\.callbacks\.(\w+)")
OF_BATCHES = frozenset(
    f"on_{what}_{end}" for what in ("batch", "train_batch", "test_batch") for end in ("begin", "end")
)
OF_EPOCHS = frozenset(f"on_{what}_{end}" for what in ("epoch", "test") for end in ("begin", "end"))
"""Hooks of epochs and evaluations."""
_INSTEAD = {
    "ModelCheckpoint": "use --checkpoint_dir, with --checkpoint_best=METRIC for the best one",
    "BackupAndRestore": "the job recovers by itself, and another one continues from --checkpoint_dir",
    "OrbaxCheckpoint": "use --checkpoint_dir, with --checkpoint_best=METRIC for the best one",
    "TensorBoard": "use --tensorboard_log_dir",
    "CSVLogger": "no worker is the one that writes, so leave it out: the job's output, its page and --tensorboard_log_dir have the metrics",
    "ProgbarLogger": "the job shows its progress itself",
    "RemoteMonitor": "send from a callback of your own",
    "SwapEMAWeights": "leave it out",
    "TerminateOnNaN": "leave it out: such a job ends in any case when a minibatch's loss is no number (--on_nan)",
}
"""Callbacks of Keras that make no sense there, and what to do instead."""
BEST_WEIGHTS = (
    "restore_best_weights=True would keep weights that are on the servers; leave it out, and keep the best checkpoint with "
    "--checkpoint_best=METRIC"
)
_PLAIN = (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


def why_refused(name: str, classes: Iterable[str] = ()) -> str:
    """Return what is said of a callback that is not possible with parameter servers; `classes`: names of those that it is one of."""
    instead = next((_INSTEAD[one] for one in (name, *classes) if one in _INSTEAD), None)
    if instead is not None:
        return f"the callback {name} is not possible with parameter servers; {instead}"
    return (
        f"{name} is called by batch, and workers with parameter servers have no steps in common; use hooks of epochs, or train "
        "without --num_ps_pods"
    )


def is_refused(classes: Iterable[str]) -> bool:
    """Tell whether one of these classes of Keras is not possible with parameter servers."""
    return any(one in _INSTEAD for one in classes)


def refused_callback(file: ZooFile, function: ast.AST) -> tuple[int, str] | None:
    """Return line of the first callback made by `function` that is not possible, and why; None if there is none to be seen."""
    for call in _calls(function):
        name = file.dotted(call.func)
        given = {word.arg: word.value for word in call.keywords}
        short = name.rpartition(".")[2]
        if name.endswith(".EarlyStopping") and _is_true(given.get("restore_best_weights")):
            return call.lineno, f"EarlyStopping: {BEST_WEIGHTS}"
        by_batch = name.endswith(".LambdaCallback") and not OF_BATCHES.isdisjoint(given)
        if by_batch or file.refuses(name):
            return call.lineno, why_refused(short)
    return None


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


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

    def refuses(self, name: str, seen: frozenset[tuple[Path, str]] = frozenset()) -> bool:
        """Tell whether a class is a callback with hooks of batches, or one that makes no sense."""
        library = _KERAS.fullmatch(name)
        if library is not None:
            return is_refused((library[1],))
        if (self.path, name) in seen:
            return False
        own, seen = self._classes.get(name), seen | {(self.path, name)}
        if own is None:
            other = self._other(name)
            return other is not None and other.refuses(other._meaning(name.rpartition(".")[2]), seen)
        hooks = {one.name for one in own.body if isinstance(one, ast.FunctionDef)}
        bases = (self.dotted(base) for base in own.bases)
        return not hooks.isdisjoint(OF_BATCHES) or any(self.refuses(base, seen) for base in bases)

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
