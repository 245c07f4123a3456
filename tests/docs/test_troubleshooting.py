"""The page of messages: each message is one that the code says, and has a cause and a remedy."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.M)
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)


@cache
def literals() -> str:
    """Return all literal text of the code, one piece a line."""
    found: list[str] = []
    for path in (ROOT / "python" / "elasticdl").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    for folder in ("core", "python"):
        for path in (ROOT / "rust" / folder / "src").rglob("*.rs"):
            texts = LITERAL.findall(path.read_text(encoding="utf-8"))
            found += [re.sub(r"\\\n\s*", "", text) for text in texts]
    return "\n".join(found)


def test_each_message_has_a_cause_and_a_remedy() -> None:
    entries = PAGE.split("\n### ")[1:]
    assert len(entries) == len(MESSAGES) == len(set(MESSAGES)) >= 25
    for entry in entries:
        assert re.search(r"\n\*Cause\.\* [^*]+\n\*Remedy\.\* ", entry), entry.partition("\n")[0]


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_it(message: str) -> None:
    parts = [part.strip(" :,") for part in message.split("…")]
    assert max(map(len, parts)) >= 10, "too little to look for"
    for part in filter(None, parts):
        assert part in literals(), part
