"""Rows of made-up data sets in the format of real ones."""

from __future__ import annotations

import numpy as np

_NAMES = ("carrier", "tailnum", "flight", "origin", "dest")
_NUMBERS = ("hour", "month", "distance", "temp", "wind_speed", "precip", "visib")
FLIGHT_COLUMNS = [*_NAMES, *_NUMBERS, "late"]


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


def flights(count: int) -> list[list[str]]:
    """Return rows of flights; a flight is late with some carriers, or in bad weather."""
    draw = np.random.default_rng(0)
    names = draw.integers(0, 8, (count, len(_NAMES)))
    numbers = draw.random((count, len(_NUMBERS)))
    late = (names[:, 0] < 3) | (numbers[:, 4] > 0.9)
    return [
        [*(f"{name}{one}" for name, one in zip(_NAMES, own, strict=True)), *map(str, values), str(int(label))]
        for own, values, label in zip(names, numbers, late, strict=True)
    ]
