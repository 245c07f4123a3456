"""The chunks with which an evaluation is tried before a job begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticdl.errors import BadData
from elasticdl.worker.contract.records import Records, picked
from elasticdl.worker.contract.usermodel import UserModel


def trial_batches(user: UserModel, feed: Callable[[Records], Any], sample: Records) -> tuple[Any, Any]:
    """Return what `feed` makes of two parts of a sample, of different sizes. Raises BadData if it makes no example of them."""
    count = len(sample)
    cut = max(1, (count - 1) // 2)
    rest = range(cut, count) if count > 2 else (*range(count), 0)
    parts = (picked(sample, range(cut)), picked(sample, rest))
    found = [batch for batch in map(feed, parts) if batch.examples]
    if not found:
        raise BadData(
            f"{user.path}: feed made no example of the first {len(sample)} records of the evaluation data; metrics can't be tried"
        )
    return found[0], found[-1]
