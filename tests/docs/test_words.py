"""Code, messages and documentation use the field's words: those of an earlier vocabulary do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RETIRED = {
    "master's core and its values": r"\b(?:[Kk]eeper|Succession|Attendance|[Ss]cribe)\b",
    "event history, status store, status view": r"\b(?:(?:File|Item)Board|Sight)\b|\b_?Story\b",
    "replica set, replica, give-up": r"\b[Ww]orkforces?\b|\bHopeless\b",
    "request tracker, outbound request, response queue": r"\b(?:Asking|Errands?|errands?|Desk|desks?)\b",
    "primary epoch, fenced": r"\b[Rr]eigns?\b|\b[Dd]eposed\b",
    "revoke task, drain request": r"\b(?:LetGo|LeaveWanted|let_go|leave_wanted)\b",
    "pending kill, mutual suspicion, open incident": r"\bcondemned\b|\bfeuds?\b|\b[Tt]rouble\b",
    "acceptor, TLS proxy, unauthenticated connections": r"\bDoor\b|\bLobby\b|\blobby\b|\bGate\b",
    "parent-death watch": r"[Ll]ifeline|LIFELINE",
    "parameter-server side (`Ps…`); serving is inference": r"\b(?:Keras)?(?:Serving|Served)[A-Z]\w*",
    "table reader": r"\bLearnt\b",
    "continues, is at, receives": r"\b(?:goes on|went on|stands at|(?:is|are) told)\b",
    "any worker, custom": r"\b(?:[Ww]hoever|[Ww]homever|of one's own)\b",
}
"""What is said today → the pattern of what was said before."""
PLACES = (
    "python/**/*.py", "python/**/*.pyi", "rust/*/src/**/*.rs", "proto/**/*.proto", "model_zoo/**/*.py", "docs/**/*.md", "*.md",
    "tests/cli/help/*.txt",
)  # fmt: skip


@pytest.mark.parametrize("today", RETIRED)
def test_a_retired_word_does_not_come_back(today: str) -> None:
    pattern = re.compile(RETIRED[today])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for place in PLACES
        for path in sorted(ROOT.glob(place))
        if "generated" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"say: {today}\n" + "\n".join(found)
