"""Files hold one idea: a long one says in its header why it is one, or it is split."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = 600
SENTENCE = re.compile(r"\bOne file because \w[^.]{20,}\.")
"""What the header of a longer file has to say."""


def sources() -> Iterator[Path]:
    """Yield what is written by hand of the package and of the crates."""
    package = ROOT / "python" / "elasticdl"
    yield from (
        path for path in package.rglob("*.py") if package / "control" / "generated" not in path.parents
    )
    for crate in (ROOT / "rust").glob("*/src"):
        yield from crate.rglob("*.rs")


def header(path: Path, text: str) -> str:
    """Return a module's docstring, or the lines with which a file of Rust begins, as one line."""
    if path.suffix == ".py":
        found = ast.get_docstring(ast.parse(text)) or ""
    else:
        begins = re.match(r"(//!.*\n)*", text)
        assert begins is not None
        found = begins[0].replace("//!", "")
    return " ".join(found.split())


def unexplained(path: Path) -> bool:
    """Tell whether a file is long and does not say why it is one."""
    text = path.read_text()
    return len(text.splitlines()) > LINES and not SENTENCE.search(header(path, text))


def test_long_files_say_why_they_are_one() -> None:
    found = {str(path.relative_to(ROOT)) for path in sources() if unexplained(path)}
    assert found == set(), (
        f"split them, or say in their headers 'One file because …': more than {LINES} lines"
    )


@pytest.mark.parametrize(
    ("name", "head", "is_unexplained"),
    [
        ("long.py", '"""One idea.\n\nOne file because all of it changes\nthe same state.\n"""', False),
        ("long.py", '"""One idea."""\n\n# One file because all of it changes the same state.', True),
        ("long.rs", "//! One idea.\n//!\n//! One file because all of it changes\n//! the same state.", False),
        (
            "long.rs",
            "//! One idea.\nuse std::fmt;\n// One file because all of it changes the same state.",
            True,
        ),
        ("long.rs", "//! One file because so.", True),
    ],
)
def test_what_a_header_has_to_say(name: str, head: str, is_unexplained: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(head + "\n" * (LINES + 1))
    assert unexplained(path) == is_unexplained
    path.write_text(head)
    assert not unexplained(path)


def test_generated_files_do_not_count() -> None:
    names = {path.name for path in sources()}
    assert {"jobspec.py", "slot.rs"} <= names
    assert not any("_pb2" in name for name in names)
