"""The order of a loop's batches is that of its plan, however many of them are found at once."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.plan.loopplan import BatchOrder, LoopPlan


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("records", "batch_size"), [(10, 3), (10_000, 7), (9_000, 5_000), (8_192, 4_096), (1, 1)]
)
def test_batches_have_the_records_of_the_ledgers_tasks(records: int, batch_size: int, shuffle: bool) -> None:
    plan = LoopPlan(records, batch_size, 2, shuffle, seed=3)
    ledger, order = plan.schedule().ledger, BatchOrder(plan)
    for epoch in (1, 0):
        seen = []
        for batch in reversed(range(ledger.num_tasks)):
            task = ledger.task_by_id(epoch, batch)
            found = order.records(epoch, batch)
            assert np.array_equal(found, plan.records_of(epoch, ledger.chunk(task, 0)))
            assert len(found) == order.size(batch) == task.count
            seen += found.tolist()
        assert sorted(seen) == list(range(records))
