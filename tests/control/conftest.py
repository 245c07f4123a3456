"""Addresses and ends of the tests of the control plane."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        yield f"unix:{folder}/control"


@pytest.fixture
def close() -> Iterator[Callable[[Any], Any]]:
    opened: list[Any] = []
    yield lambda thing: (opened.append(thing), thing)[1]
    for thing in reversed(opened):
        thing.close()
