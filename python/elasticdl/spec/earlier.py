"""What model files of ElasticDL 0.2 import, and what serves in its place now.

Found in the syntax tree, so that the answer comes before anything is started. An import that the file itself guards is trusted.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from elasticdl.errors import BadModel
from elasticdl.spec.earliernames import is_served

PAGE = 'the page "Coming from ElasticDL 0.2" (docs/guides/coming-from-0.2.md)'

_READERS = (
    "--training_data reads files of several kinds; custom_data_reader() in the model file reads anything else"
)
_SUCCESSORS = {
    "elasticdl.python": "import Mode from elasticdl, Embedding from elasticdl.keras",
    "elasticdl.python.common.constants": "there are no such constants, except for Mode",
    "elasticdl.python.common.constants.Mode": "write `from elasticdl import Mode`",
    "elasticdl.python.common.log_utils": "use logging.getLogger(__name__)",
    "elasticdl.python.data": _READERS,
    "elasticdl.python.elasticdl.callbacks": "use the callbacks of Keras",
    "elasticdl.python.elasticdl.callbacks.LearningRateScheduler": "give a schedule of keras.optimizers.schedules to the optimizer",
    "elasticdl.python.elasticdl.callbacks.MaxStepsStopping": "use --max_step",
    "elasticdl.python.elasticdl.callbacks.SavedModelExporter": "use --output with --output_format=saved_model",
    "elasticdl.python.elasticdl.feature_column": "use the preprocessing layers of Keras and elasticdl.keras.Embedding",
    "elasticdl.python.elasticdl.layers": "write `from elasticdl.keras import Embedding`",
    "elasticdl.python.worker.prediction_outputs_processor": "a class with process(predictions, worker_id) will do, without a base",
    "elasticai_api": "use elasticdl.torch, or elasticdl.init(), in a program that `elasticdl run` starts (docs/guides/moving.md)",
    "elasticdl_preprocessing": "use elasticdl.preprocessing, or the preprocessing layers of Keras",
    "elasticdl_preprocessing.layers.ConcatenateWithOffset": "write `from elasticdl.preprocessing.layers import ConcatenateWithOffset`",
    "elasticdl_preprocessing.layers.Discretization": "use keras.layers.Discretization",
    "elasticdl_preprocessing.layers.Embedding": "write `from elasticdl.keras import Embedding`, with combiner=",
    "elasticdl_preprocessing.layers.Hashing": "use keras.layers.Hashing",
    "elasticdl_preprocessing.layers.IndexLookup": "write `from elasticdl.preprocessing.layers import IndexLookup`",
    "elasticdl_preprocessing.layers.LogRound": "write `from elasticdl.preprocessing.layers import LogRound`",
    "elasticdl_preprocessing.layers.Normalizer": "use keras.layers.Normalization(mean=subtractor, variance=divisor**2)",
    "elasticdl_preprocessing.layers.RoundIdentity": "write `from elasticdl.preprocessing.layers import RoundIdentity`",
    "elasticdl_preprocessing.layers.SparseEmbedding": "write `from elasticdl.keras import Embedding`, with combiner=",
    "elasticdl_preprocessing.layers.ToNumber": "write `from elasticdl.preprocessing.layers import ToNumber`",
    "elasticdl_preprocessing.layers.ToRagged": "write `from elasticdl.preprocessing.layers import ToRagged`",
    "elasticdl_preprocessing.layers.ToSparse": "write `from elasticdl.preprocessing.layers import ToSparse`",
}
"""Module, or module and name, → what to write instead; the longest that fits counts."""
_LEGACY = "TF_USE_LEGACY_KERAS"
"""Is set where `tf.keras` is Keras 2."""
_ADD = "the file imports names of ElasticDL 0.2: if it was written for TensorFlow up to 2.15, which had Keras 2, add --framework=tf_keras"
_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
_LAYERS = "elasticdl_preprocessing"
"""Layers need nothing of a job: a copy of them in the zoo is the zoo's own."""


def successor(dotted: str) -> str:
    """Return what serves in place of a module or a name of the earlier generation, empty if it is none of it."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        found = _SUCCESSORS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return ""


def check_imports(path: Path, tree: ast.Module, zoo: Path) -> None:
    """Raise BadModel for imports of what is left of the earlier generation's packages, naming each with its line and what serves instead.

    Names that can still be imported are answered where a function imports them: they exist only while the file is loaded.
    """
    top = set(_unguarded(tree, functions=False))
    found = []
    for statement in _unguarded(tree):
        for wanted in _imported(statement):
            own = wanted.partition(".")[0] == _LAYERS and (zoo / _LAYERS).exists()
            instead = successor(wanted)
            if is_served(wanted):
                instead = "" if statement in top else "import it at the top of the file"
            if instead and not own:
                found.append(f"{path}:{statement.lineno}: {wanted} was a part of ElasticDL 0.2; {instead}")
    if found:
        raise BadModel("\n".join([*found, f"{PAGE} says more"]))


def hint(path: Path) -> str:
    """Return what the error of a file says, besides, that has imports of ElasticDL 0.2 and may be one of Keras 2; empty for others."""
    if os.environ.get(_LEGACY):
        return ""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    old = any(is_served(wanted) for statement in _unguarded(tree) for wanted in _imported(statement))
    return f"; {_ADD}" if old else ""


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield what a statement imports, with its module."""
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            yield alias.name
        elif statement.module and not statement.level:
            yield f"{statement.module}.{alias.name}"


def _unguarded(node: ast.AST, functions: bool = True) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that fail where their module is missing: not those in a `try` that expects it, nor for type checkers.

    `functions`: those of functions, too.
    """
    match node:
        case ast.Import() | ast.ImportFrom():
            yield node
        case ast.Try() if any(_catches(handler) for handler in node.handlers):
            for part in (node.handlers, node.orelse, node.finalbody):
                yield from _below(part, functions)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            yield from _below(node.orelse, functions)
        case ast.FunctionDef() | ast.AsyncFunctionDef() if not functions:
            return
        case _:
            yield from _below(ast.iter_child_nodes(node), functions)


def _below(nodes: Iterable[ast.AST], functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _unguarded(node, functions)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler takes the error of a missing module."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _GUARDS) for kind in kinds)
