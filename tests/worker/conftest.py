"""Synchronous workers in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.synchronous import Made, Worker


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Make workers that reach each other, numbered from 0."""
    workers: list[Worker] = []

    def make(**settings: Any) -> Worker:
        workers.append(Worker(tmp_path, len(workers), **settings))
        return workers[-1]

    yield make
    for one in workers:
        one.close()
