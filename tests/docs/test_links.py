"""The check of links and paths: the pages pass it, and it finds what is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import links

PAGE = """\
# One `page`, and *more*

## Twice

## Twice

| place | |
| --- | --- |
| `core/` | `deep/inner.py` |

`core/deep/*.py`, `MODEL_ZOO/a/b.py`, `example.com/unit`, `core/deep/inner.py::test`, [outside](https://example.com/none#none)

```sh
python core/deep/inner.py data/train
```
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "guides").mkdir(parents=True)
    (tmp_path / "core" / "deep").mkdir(parents=True)
    (tmp_path / "core" / "deep" / "inner.py").touch()
    (tmp_path / "docs" / "guides" / "page.md").write_text(PAGE)
    return tmp_path


def problems(repository: Path, text: str) -> list[str]:
    """Return what is wrong with a page of one line in `docs/`."""
    (repository / "docs" / "other.md").write_text(text)
    return list(links.Repository(repository).problems())


def test_the_pages_have_no_problem() -> None:
    assert list(links.Repository(links.ROOT).problems()) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](guides/page.md)",
        "[a](guides/page.md#one-page-and-more)",
        "[a](guides/page.md#twice-1)",
        "# Here\n\n[a](#here)",
        "[a](../core/deep/inner.py) ![b](guides/page.md)",
        "`inner.py` and `deep/`",
    ],
)
def test_what_is_there_is_no_problem(repository: Path, text: str) -> None:
    assert problems(repository, text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](page.md)", "the link page.md leads to no file"),
        ("[a](guides)", "the link guides leads to no file"),
        ("[a](../../outside.md)", "the link ../../outside.md leads to no file"),
        ("![a](none.svg)", "the link none.svg leads to no file"),
        ("[a][b]\n\n[b]: none.md", "the link none.md leads to no file"),
        ("[a](guides/page.md#thrice)", "the link guides/page.md#thrice leads to no heading of docs/guides/page.md"),
        ("[a](guides/page.md#twice-2)", "the link guides/page.md#twice-2 leads to no heading of docs/guides/page.md"),
        ("[a](#here)", "the link #here leads to no heading of docs/other.md"),
        ("`core/inner.py`", "there is no core/inner.py"),
        ("`outer.py`", "there is no outer.py"),
        ("`other/inner.py`", "there is no other/inner.py"),
        ("`core/shallow/`", "there is no core/shallow/"),
        ("`shallow/`", "there is no shallow/"),
        ("`core/*.py`", "there is no core/*.py"),
        ("| a |\n| --- |\n| `outer.py::test` |", "there is no outer.py"),
        ("```sh\npython core/outer.py\n```", "there is no core/outer.py"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(repository: Path, text: str, problem: str) -> None:
    found = problems(repository, text)
    assert [one.partition(": ")[2] for one in found] == [problem]
    assert found[0].startswith(f"docs/other.md:{3 if '|' in text else 1}: ")


def test_the_line_is_named(repository: Path) -> None:
    assert problems(repository, "# A\n\ntext\n\n- [a](none.md)\n") == [
        "docs/other.md:5: the link none.md leads to no file"
    ]
