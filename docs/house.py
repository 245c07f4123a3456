"""What the pages on the architecture show of the code: its rooms, from the contracts of import-linter and the packages' docstrings."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

from docs import drawing
from docs.drawing import Room

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / "python" / "elasticdl"


def python_rooms() -> str:
    """Return the drawing of the Python packages: layers from above to below, each importing only what lies below it."""
    return drawing.rooms(_layers("layers", "elasticdl"))


def rust_rooms() -> str:
    """Return the drawing of the Rust core's modules."""
    core = _ROOT / "rust" / "core" / "src"
    rows = [[_crate_room(core / name)] for name in ("ps", "net", "records")]
    return drawing.rooms(rows)


def table() -> str:
    """Return a table of the Python packages, two levels deep, with their sentences."""
    rows = ["| room | what is in it |", "| --- | --- |"]
    for path in sorted(_PACKAGE.glob("*/__init__.py")) + sorted(_PACKAGE.glob("*/*/__init__.py")):
        name = path.parent.relative_to(_PACKAGE).as_posix()
        if not name.endswith("generated"):
            rows.append(f"| `{name}/` | {_sentence(path)} |")
    head, rest = rows[:2], sorted(rows[2:])
    return "\n".join([*head, *rest]) + "\n"


def _contracts() -> list[dict[str, Any]]:
    with (_ROOT / "pyproject.toml").open("rb") as file:
        contracts: list[dict[str, Any]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return contracts


def _layers(name: str, parent: str) -> list[list[Room]]:
    """Return the layers of a contract: the one of that name, or the one whose container is the parent."""
    for contract in _contracts():
        if contract["type"] == "layers" and (
            contract["name"] == name or contract.get("containers") == [parent]
        ):
            return [[_room(one.strip(), parent) for one in layer.split("|")] for layer in contract["layers"]]
    return []


def _room(name: str, parent: str) -> Room:
    dotted = name if name.startswith("elasticdl") else f"{parent}.{name}"
    path = _PACKAGE.joinpath(*dotted.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inner = _layers("", dotted) if path.is_dir() else []
    return Room(dotted.rpartition(".")[2], _sentence(source), inner)


def _sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    whole = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return whole.partition("\n\n")[0].replace("\n", " ")


def _crate_room(path: Path) -> Room:
    text = (path / "mod.rs").read_text(encoding="utf-8")
    modules = re.findall(r"^(?:pub(?:\(crate\))? )?mod (\w+);", text, re.M)
    inner = [_crate_room(path / name) for name in modules if (path / name / "mod.rs").exists()]
    rows = [inner[at : at + 2] for at in range(0, len(inner), 2)]
    return Room(path.name, _comment(text), rows)


def _comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("//! "):
            break
        lines.append(line[4:])
    return " ".join(lines)


CHUNK = drawing.sequence(
    ["master", "worker 0", "worker 1"],
    [
        ("master", "worker 0", "view 7: who is in the group, who has which lane"),
        ("master", "worker 1", "view 7"),
        (
            "worker 0",
            "worker 0",
            "the ledger says which chunk: read, convert, compute the gradient sum; write the audit's line",
        ),
        ("worker 1", "worker 1", "the same for its own chunk"),
        ("worker 0", "worker 1", "ring: gradient sums, examples, records, who contributed which lane"),
        ("worker 1", "worker 0", "ring: the sum over all members"),
        ("worker 0", "worker 0", "write that the step is committed, apply it"),
        ("worker 1", "worker 1", "write that the step is committed, apply it"),
        ("worker 0", "master", "heartbeat: step committed"),
    ],
)
"""The way of a chunk in a synchronous job: the master is not on it."""

PUSH = drawing.sequence(
    ["master", "worker", "primary", "backup"],
    [
        ("master", "worker", "lease: task 12"),
        ("worker", "primary", "pull: rows of the ids, dense variables"),
        ("primary", "worker", "rows and variables"),
        ("worker", "worker", "compute the chunk's gradients, write the audit's line"),
        ("worker", "primary", "push with the stamp (task 12, chunk 3)"),
        ("primary", "primary", "not seen before: apply it, remember the stamp"),
        ("primary", "backup", "the same part, in the stream's order"),
        ("backup", "primary", "accepted"),
        ("primary", "worker", "acknowledged"),
        ("worker", "worker", "all parts of all chunks of the task are acknowledged"),
        ("worker", "master", "task 12 is done"),
    ],
)
"""The way of a push in a job with parameter servers."""
