"""What others have written is read or refused, whatever the bytes: the corpus, and a hundred damaged inputs of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, Target, try_case

CASES = 100


@pytest.mark.parametrize(
    "file", sorted(CORPUS.glob("*/*")), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_corpus(file: Path) -> None:
    taken = TARGETS[file.parent.name].takes(file.read_bytes())
    assert taken is not file.name.startswith("refused")


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_damage(target: Target) -> None:
    for number in range(CASES):
        try_case(target, number)
