"""Check that what the pages name is there: pages and headings that they link to, and files and folders of the repository.

`make check` runs it. It needs no network: links to other hosts are not followed. A name in a block of code is one of the repository if it
begins with a folder of it (`tests/docs/`). In backticks so are those of source files and folders, of which pages may leave out the first
parts (`master/core/`, `slot.rs`). Names that begin in capitals (`MODEL_ZOO/a/b.py`) are examples.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SOURCE = re.compile(r"(?:[\w.*-]+/)*[\w*-]+\.(?:py|pyi|rs|proto|toml)")
_FOLDER = re.compile(r"(?:[\w*-]+/)+")
_BUILT = {"target", "build", "dist", "__pycache__"}
"""Folders of what is built; those that begin with a point are none of the repository's either, except `.ci`."""
_WRITTEN = {"model_zoo/Dockerfile", "model_zoo/requirements.txt"}
"""Files that somebody who follows a tutorial writes into the repository."""


class Repository:
    """The files of a checkout, and its pages."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def paths(self) -> set[str]:
        """Return all files, and folders with a slash at their end."""
        found: set[str] = set()
        for folder, folders, files in os.walk(self.root):
            folders[:] = [
                name for name in folders if name == ".ci" or (name[0] != "." and name not in _BUILT)
            ]
            inside = Path(folder).relative_to(self.root)
            found |= {(inside / name).as_posix() for name in files}
            found |= {f"{(inside / name).as_posix()}/" for name in folders}
        return found

    @cached_property
    def headings(self) -> dict[str, set[str]]:
        """Return the anchors of each page, by the page's path."""
        return {page.relative_to(self.root).as_posix(): set(anchors(_read(page))) for page in self.pages()}

    def pages(self) -> list[Path]:
        """Return the pages that are checked: those at the top, and the documentation."""
        return sorted(self.root.glob("*.md")) + sorted((self.root / "docs").rglob("*.md"))

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, with the page and its line."""
        for page in self.pages():
            where = page.relative_to(self.root).as_posix()
            for line, token in _tokens(_read(page)):
                for what in self._wrong(where, token):
                    yield f"{where}:{line}: {what}"

    def _wrong(self, page: str, token: Token) -> Iterator[str]:
        match token.type:
            case "link_open":
                yield from self._wrong_link(page, str(token.attrs["href"]))
            case "image":
                yield from self._wrong_link(page, str(token.attrs["src"]))
            case "code_inline" | "fence":
                for word in token.content.split():
                    name = word.partition("::")[0].rstrip(".,:;")
                    if not self._exists(name, by_its_end=token.type == "code_inline"):
                        yield f"there is no {name}"

    def _wrong_link(self, page: str, link: str) -> Iterator[str]:
        parts = urlsplit(link)
        if parts.scheme:
            return
        relative = os.path.normpath(Path(page).parent / unquote(parts.path))
        target = relative if parts.path else page
        if target not in self.paths:
            yield f"the link {link} leads to no file"
        elif parts.fragment and unquote(parts.fragment) not in self.headings.get(target, set()):
            yield f"the link {link} leads to no heading of {target}"

    def _exists(self, name: str, by_its_end: bool) -> bool:
        """Tell whether a name is a path of the repository, or none that has to be one."""
        if name in _WRITTEN or name.partition("/")[0].isupper():
            return True
        if "/" in name and f"{name.partition('/')[0]}/" in self.paths:
            return self._matches(f"^{_pattern(name)}/?$")
        if by_its_end and (_SOURCE.fullmatch(name) or _FOLDER.fullmatch(name)):
            return self._matches(f"(?:^|/){_pattern(name)}$")
        return True

    def _matches(self, pattern: str) -> bool:
        expression = re.compile(pattern)
        return any(expression.search(path) for path in self.paths)


def anchors(text: str) -> Iterator[str]:
    """Yield the anchor of each heading, as code hosts and the site make them."""
    seen: Counter[str] = Counter()
    tokens = _MARKDOWN.parse(text)
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            title = "".join(one.content for one in content.children or [])
            anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
            yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
            seen[anchor] += 1


def _tokens(text: str) -> Iterator[tuple[int, Token]]:
    """Yield the blocks of code and what is in paragraphs, with the line on which the block begins."""
    for token in _MARKDOWN.parse(text):
        line = token.map[0] + 1 if token.map else 0
        for one in (token, *(token.children or [])):
            yield line, one


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"\*", "[^/]*")


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def main() -> int:
    """Print what is wrong; the exit code is 1 if anything is."""
    problems = list(Repository(ROOT).problems())
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
