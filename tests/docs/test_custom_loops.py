"""The guide to custom training loops names all that a job offers, and messages that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs.test_troubleshooting import literals

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "custom-loops.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """Return the first column of the table under a heading."""
    section = PAGE.split(f"{heading}\n")[1].split("\n#")[0]
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
    body = ast.parse((ROOT / "python" / "elasticdl" / "torch" / path).read_text(encoding="utf-8")).body
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
    assert {name for name in loader if f"`{name}`" not in section} == {"sampler", "batch_sampler"}
    shown = {name for row in rows("### elastic") for name in re.findall(r"`(\w+)`", row)}
    assert shown == arguments(functions("adoption.py")["elastic"])


def test_what_is_refused_is_said_by_the_code() -> None:
    messages = [row.strip("`") for row in rows("## What is refused")]
    assert len(messages) == len(set(messages)) > 20
    assert [one for one in messages if one not in literals()] == []
