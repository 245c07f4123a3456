"""The chunks with which an evaluation is tried before a job begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticdl.worker.contract.records import Records, picked
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.usercode import no_example


def trial_batches(user: UserModel, feed: Callable[[Records], Any], sample: Records) -> tuple[Any, Any]:
    """Return what `feed` makes of two parts of a sample, of different sizes. Raises BadData if it makes no example of them."""
    count = len(sample)
    cut = max(1, (count - 1) // 2)
    rest = range(cut, count) if count > 2 else (*range(count), 0)
    parts = (picked(sample, range(cut)), picked(sample, rest))
    found = [batch for batch in map(feed, parts) if batch.examples]
    if not found:
        raise no_example(user, sample)
    return found[0], found[-1]
