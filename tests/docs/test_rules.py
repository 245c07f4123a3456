"""Rules of the protocols: each that code or a test cites is defined on a page, and once.

A rule is a letter and a number: R, A and B (parameter servers), D, M, S and J (the synchronous protocol). It is cited in comments and
string literals (docstrings, messages), alone or as a range ("R1 to R18", "M1–M8"); names in code such as `S0` are no citations.

A page of `docs/` defines a rule where a line begins with the rule and a full stop in bold ("**R1.** …"), or where the first cell of a
table's row has it ("| M6, M7 | …").
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES_OF_SERVERS = ROOT / "docs" / "reference" / "ps-rules.md"
RULE = re.compile(r"\b([RABDMSJ])([1-9]\d?)\b(?:(?: to |–|-)\1([1-9]\d?)\b)?")
BOLD = re.compile(r"^\*\*([RABDMSJ][1-9]\d?)\.\*\* ", re.M)
ROW = re.compile(r"^\| ([RABDMSJ][1-9]\d?(?:, [RABDMSJ][1-9]\d?)*) \|", re.M)
CODE = {
    "python": ("*.py", "*.pyi"),
    "rust/core": ("*.rs",),
    "rust/python": ("*.rs",),
    "tests": ("*.py",),
    "proto": ("*.py", "*.proto"),
}
WORDS = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*"', re.S)


def texts(path: Path) -> Iterator[str]:
    """Return the comments and strings of a file, none if it has no rule anywhere."""
    source = path.read_text(encoding="utf-8")
    if RULE.search(source) is None:
        return
    if path.suffix not in (".py", ".pyi"):
        yield from WORDS.findall(source)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.string


def cited(text: str) -> Iterator[str]:
    """Return the rules that a text cites."""
    for letter, first, last in RULE.findall(text):
        yield from (f"{letter}{number}" for number in range(int(first), int(last or first) + 1))


def citations() -> dict[str, set[str]]:
    """Return each rule that is cited, with the files that cite it."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder, patterns in CODE.items():
        paths = [path for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
        for path in paths:
            if path == Path(__file__).resolve() or "generated" in path.parts or "target" in path.parts:
                continue
            for text in texts(path):
                for rule in cited(text):
                    found[rule].add(str(path.relative_to(ROOT)))
    return found


def definitions(page: str) -> list[str]:
    """Return the rules that a page defines."""
    rows = [rule for row in ROW.findall(page) for rule in row.split(", ")]
    return [*BOLD.findall(page), *rows]


def test_each_rule_that_is_cited_is_defined_once() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for rule in definitions(path.read_text(encoding="utf-8")):
            defined[rule].append(path.name)
    assert {rule: pages for rule, pages in defined.items() if len(pages) > 1} == {}
    found = citations()
    assert {rule: sorted(files) for rule, files in found.items() if rule not in defined} == {}
    # The search finds what there is: some rule of each kind is cited.
    assert {rule[0] for rule in found} == set("RABDMSJ")


def test_the_rules_of_parameter_servers_are_complete() -> None:
    page = RULES_OF_SERVERS.read_text(encoding="utf-8")
    wanted = [f"R{number}" for number in range(1, 30)] + [f"A{number}" for number in range(1, 7)]
    wanted += [f"B{number}" for number in range(1, 6)]
    assert sorted(definitions(page)) == sorted(wanted)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("slots and servers (rules R1 to R3): what", ["R1", "R2", "R3"]),
        ("every rule of a member (M1–M3, S1)", ["M1", "M2", "M3", "S1"]),
        ("against rule D10; R0, V1 and AR2 are none", ["D10"]),
    ],
)
def test_citations(text: str, rules: list[str]) -> None:
    assert list(cited(text)) == rules


def test_where_a_rule_is_exists() -> None:
    page = RULES_OF_SERVERS.read_text(encoding="utf-8")
    code = ""
    for folder, patterns in CODE.items():
        if folder in ("python", "rust/core"):
            paths = (path for pattern in patterns for path in (ROOT / folder).rglob(pattern))
            code += "".join(path.read_text(encoding="utf-8") for path in paths)
    words = set(re.findall(r"\w+", code))
    for where in re.findall(r"^Code: (.*)\.$", page, re.M):
        for name in re.findall(r"`([\w:]+)`", where):
            assert words.issuperset(name.split("::")), name
