"""The tutorial of PyTorch loops shows what makes a program elastic: the difference of two programs, six lines."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "custom_loops"
PLAIN, ELASTIC = (
    (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    for name in ("torch_digits_plain", "torch_digits")
)


def test_six_lines_are_changed_at_most() -> None:
    changes = difflib.SequenceMatcher(None, PLAIN, ELASTIC, autojunk=False).get_opcodes()
    changed = [
        max(sum(map(bool, PLAIN[first:last])), sum(map(bool, ELASTIC[begin:end])))
        for kind, first, last, begin, end in changes
        if kind != "equal"
    ]
    assert 0 < sum(changed) <= 6
    assert "elasticdl" not in "\n".join(PLAIN)


def test_the_tutorial_shows_them() -> None:
    page = (ROOT / "docs" / "tutorials" / "pytorch-loop.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```diff\n(.*?)^```", page, re.M | re.S)
    lines = list(difflib.unified_diff(PLAIN, ELASTIC, n=1, lineterm=""))[2:]
    expected = ["@@" if line.startswith("@@") else line for line in lines if line.strip(" +-")]
    assert shown.splitlines() == expected, "\n".join(expected)
