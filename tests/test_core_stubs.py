"""`_core.pyi` says what the binary has: the same names, the same parameters in the same order, the same ones optional."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elasticdl
from elasticdl import _core

STUB = ast.parse((Path(elasticdl.__file__).parent / "_core.pyi").read_text())


def stubbed(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def parameters_of(node: ast.stmt) -> list[tuple[str, bool]]:
    """Return name and whether it is optional of each parameter but `self`."""
    assert isinstance(node, ast.FunctionDef)
    names = [argument.arg for argument in node.args.args]
    optional = [False] * (len(names) - len(node.args.defaults)) + [True] * len(node.args.defaults)
    by_name = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    keywords = [(argument.arg, default is not None) for argument, default in by_name]
    return [pair for pair in zip(names, optional, strict=True) if pair[0] != "self"] + keywords


def parameters_in_binary(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default is not p.empty) for p in parameters if p.name != "self"]


def test_names() -> None:
    in_stub = {name for name in stubbed(STUB.body) if name != "ReadableBuffer"}
    assert in_stub == {name for name in dir(_core) if not name.startswith("_")}


def test_functions() -> None:
    for name, node in stubbed(STUB.body).items():
        if isinstance(node, ast.FunctionDef):
            assert parameters_of(node) == parameters_in_binary(getattr(_core, name)), name


def test_classes() -> None:
    for name, node in stubbed(STUB.body).items():
        if not isinstance(node, ast.ClassDef) or name == "ReadableBuffer":
            continue
        binary = getattr(_core, name)
        members = stubbed(node.body)
        special = {"__init__", "__len__"}
        public = {member for member in vars(binary) if not member.startswith("_")}
        assert set(members) - special == public, name
        assert ("__len__" in members) == hasattr(binary, "__len__"), name
        for member, definition in members.items():
            assert isinstance(definition, ast.FunctionDef)
            is_property = any(
                isinstance(d, ast.Name) and d.id == "property" for d in definition.decorator_list
            )
            if is_property:
                assert inspect.isgetsetdescriptor(vars(binary)[member]), f"{name}.{member}"
            elif member not in special:
                assert parameters_of(definition) == parameters_in_binary(getattr(binary, member)), (
                    f"{name}.{member}"
                )
        if "__init__" in members:
            assert parameters_of(members["__init__"]) == parameters_in_binary(binary), name
        else:
            with pytest.raises(TypeError, match=r"No constructor|cannot create"):
                binary()
