"""Rows of made-up data sets in the format of real ones."""

from __future__ import annotations

import numpy as np


def clicks(count: int) -> list[list[str]]:
    """Return rows of Criteo's logs, with empty fields: the first two categories decide on clicks, the last is always empty."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        numbers = [str(one) if one % 5 else "" for one in draw.integers(-3, 2000, 13)]
        categories = draw.integers(0, 6, 25)
        clicked = (categories[0] + categories[1]) % 3 == 0
        texts = [f"{one * 0x1F3C5A7 + 7 * place:08x}" if one else "" for place, one in enumerate(categories)]
        rows.append([str(int(clicked)), *numbers, *texts, ""])
    return rows
