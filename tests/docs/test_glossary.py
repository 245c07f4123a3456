"""The glossary: each term once, in order, with a name that the code has; `test_links.py` is about its files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", PAGE, re.M)
FOLDERS = (ROOT / "python" / "elasticdl", ROOT / "rust" / "core" / "src")


def place(term: str) -> str:
    """Return what terms are ordered by."""
    return term.lower().replace("-", " ")


def test_each_term_stands_once_and_in_order() -> None:
    names = [term for term, _ in TERMS]
    assert len(names) == PAGE.count("\n- ") > 40
    assert names == sorted(set(names), key=place)
    classes = re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)
    assert len(classes) == PAGE.count("\n| `") > 20
    assert classes == sorted(set(classes))


def test_each_term_has_a_sentence_and_a_name_in_the_code() -> None:
    for term, text in TERMS:
        assert re.search(r"\. (`[^`]+`(, )?)+$", text), term


def test_each_name_is_one_of_the_code() -> None:
    paths = [
        *FOLDERS[0].rglob("*.py"),
        *FOLDERS[1].rglob("*.rs"),
        *(ROOT / "rust" / "python" / "src").rglob("*.rs"),
    ]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    names = {part for name in re.findall(r"`(?:--)?([\w.]+)`", PAGE) for part in name.split(".")} - {
        "py",
        "rs",
    }
    assert names - set(re.findall(r"\w+", code)) == set()
