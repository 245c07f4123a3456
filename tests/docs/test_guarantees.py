"""The page of guarantees: each row names a test that exists, and says what is promised."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "concepts" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [row for row in PAGE.splitlines() if row.startswith("| ")][2:]
TESTS = [re.findall(r"`([\w./]+)::(\w+)`", row) for row in ROWS]


def functions(path: Path) -> set[str]:
    """Return the names of a file's test functions."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".rs":
        return set(re.findall(r"#\[test\]\n(?:#\[[^\n]*\]\n)*fn (\w+)\(", source))
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def test_each_promise_has_a_test() -> None:
    assert len(ROWS) > 20
    assert all(len(tests) == 1 for tests in TESTS)


@pytest.mark.parametrize(("file", "name"), [test for tests in TESTS for test in tests])
def test_the_test_exists(file: str, name: str) -> None:
    assert name in functions(ROOT / file)
