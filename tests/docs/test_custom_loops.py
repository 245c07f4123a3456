"""The guide to custom training loops names all that a job offers, and messages that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_troubleshooting import literals

ROOT = Path(__file__).resolve().parents[2]
LOOPS = ROOT / "python" / "elasticdl" / "torch"
PAGE = (ROOT / "docs" / "guides" / "custom-loops.md").read_text(encoding="utf-8")
INTERNAL = "training has not begun: the loop over edl.DataLoader begins it"
"""Of a state that there is not yet; no call of a program leads there."""


def rows(heading: str) -> list[str]:
    """Return the first column of the table under a heading."""
    level = heading.partition(" ")[0]
    section = re.split(rf"\n#{{2,{len(level)}}} ", PAGE.split(f"\n{heading}\n")[1])[0]
    return [
        line.split("|")[1].strip()
        for line in section.splitlines()
        if line.startswith("| `") and "`job.` " not in line
    ]


def arguments(function: ast.FunctionDef) -> set[str]:
    named = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
    return named - {"self"}


def functions(path: str, kind: str = "") -> dict[str, ast.FunctionDef]:
    """Return the public functions of a module, or of a class in it."""
    body = ast.parse((LOOPS / path).read_text(encoding="utf-8")).body
    if kind:
        (found,) = (one for one in body if isinstance(one, ast.ClassDef) and one.name == kind)
        body = found.body
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef)}


def test_the_table_of_the_job_has_all_of_it() -> None:
    shown = [re.match(r"`(\w+)", row)[1] for row in rows("## What the job offers")]
    assert sorted(shown) == sorted(name for name in functions("loop.py", "Job") if not name.startswith("_"))


def test_all_arguments_are_explained() -> None:
    loader = arguments(functions("loader.py", "DataLoader")["__init__"])
    section = PAGE.split("### DataLoader")[1].split("\n#")[0]
    assert not {name for name in loader if f"`{name}`" not in section}
    shown = {name for row in rows("### elastic") for name in re.findall(r"`(\w+)`", row)}
    assert shown == arguments(functions("adoption.py")["elastic"])


def messages() -> list[str]:
    found = [row.strip("`") for row in rows("## What is refused")]
    assert len(found) == len(set(found)) > 40
    return found


def test_what_is_refused_is_said_by_the_code() -> None:
    assert [one for one in messages() if one not in literals()] == []


REFUSALS = {"wrong", "BadModel", "BadData", "BadSetting"}


def texts(path: str) -> Iterator[str]:
    """Yield the literal parts of each message that a module refuses something with."""
    for node in ast.walk(ast.parse((LOOPS / path).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        parts = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
        text = "\n".join(map(str, parts))
        if name in REFUSALS and any(map(str.isalpha, text)):
            yield text


@pytest.mark.parametrize(
    "path",
    ["adoption.py", "gradients.py", "loader.py", "loop.py", "loopstate.py", "namedvalues.py", "passes.py"],
)
def test_all_that_is_refused_has_a_remedy(path: str) -> None:
    there = list(texts(path))
    assert there
    assert [text for text in there if text != INTERNAL and not any(one in text for one in messages())] == []
