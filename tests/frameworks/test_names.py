"""The rooms that serve every framework name none: no imports of one, and no identifiers with its words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticdl
from elasticdl.spec import framework

PACKAGE = Path(elasticdl.__file__).parent
ROOMS = ("worker", "master", "job", "spec", "control")
WORDS = re.compile(r"(?i)keras|tensorflow|torch|reference_?framework|(?:\b|_)(?:tf|jax|mxnet)(?:\b|_)")


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what a file imports, binds and uses, with its lines; texts for people and comments are no names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from ((node.lineno, alias.name) for alias in node.names)
                if isinstance(node, ast.ImportFrom) and node.module:
                    yield node.lineno, node.module
            case (
                ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name))
            ):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_no_framework(room: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if "generated" not in path.parts
        for line, name in names(ast.parse(path.read_text(encoding="utf-8")))
        if WORDS.search(name) or name.startswith("elasticdl.reference")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    ["import keras", "from elasticdl.keras import x", "tf.cond()", "class KerasAdapter: ...", "def f(torch_module): ...",
     "f(output=Format.KERAS)", "use(tensorflow=1)", "from elasticdl.reference.adapter import x"],
)  # fmt: skip
def test_the_test_would_see_it(source: str) -> None:
    assert any(
        WORDS.search(name) or name.startswith("elasticdl.reference") for _, name in names(ast.parse(source))
    )


def test_every_framework_of_the_package_is_a_room_of_its_own() -> None:
    assert {"jax", "keras", "mxnet", "reference", "tf_keras", "torch"} <= set(framework.names())
    for name in ("jax", "keras", "mxnet", "reference", "tf_keras", "torch"):
        assert framework.find(name).__class__.__module__ == f"elasticdl.{name}.framework"
