"""Results of evaluation tasks as a master handles them; NumPy is imported when there are some, which few masters need."""

from __future__ import annotations

import functools
from collections.abc import Sequence


def add_up(metrics: str, results: Sequence[bytes]) -> bytes:
    """Add up what evaluation tasks have found. Raises ValueError for what is no result of these metrics."""
    from elasticdl.control.protocol.metricstates import combine, pack, read_metrics, unpack

    catalog = read_metrics(metrics)
    arrays = catalog.task_arrays()
    return pack(combine(catalog, (unpack(arrays, body) for body in results)))


@functools.lru_cache(maxsize=4)
def result_size(metrics: str) -> int:
    """Return the bytes of what one evaluation task has found. Raises ValueError for what is no catalog of metrics."""
    from elasticdl.control.protocol.metricstates import read_metrics

    return read_metrics(metrics).nbytes
