"""`_core.pyi` says what the binary has: the same names, and calls with the same arguments."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import elasticdl
from elasticdl import _core

STUB = ast.parse((Path(elasticdl.__file__).parent / "_core.pyi").read_text())
ALIASES = {"ReadableBuffer"}
"""Protocols that exist for type checkers alone."""
CLASSES = {
    node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name not in ALIASES
}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def arguments(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in [*node.args.posonlyargs, *node.args.args] if argument.arg != "self"]


def is_property(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list
    )


def test_the_names_are_the_same() -> None:
    public = {name for name in vars(_core) if not name.startswith("_")}
    assert public == {*CLASSES, *FUNCTIONS}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_has_the_same_members(name: str) -> None:
    found = getattr(_core, name)
    stub = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    special = {"__init__", "__len__"}
    public = {member for member in vars(found) if not member.startswith("_")}
    assert public == set(stub) - special
    for member, node in stub.items():
        if is_property(node):
            assert inspect.isdatadescriptor(getattr(found, member)), member
        elif member == "__init__":
            assert list(inspect.signature(found).parameters) == arguments(node)
        elif member not in special:
            signature = inspect.signature(getattr(found, member))
            assert [parameter for parameter in signature.parameters if parameter != "self"] == arguments(
                node
            ), member


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_takes_the_same_arguments(name: str) -> None:
    assert list(inspect.signature(getattr(_core, name)).parameters) == arguments(FUNCTIONS[name])


def test_the_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert _core.version() == version("elasticdl")
