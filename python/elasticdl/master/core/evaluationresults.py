"""Results of evaluation tasks: how those of all tasks become one, and which can't be such. No master reads more of them than their size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticdl.control.protocol.messages import TaskResult
from elasticdl.data.plan.evaluation import MOST_BYTES
from elasticdl.data.plan.onepass import OnePass
from elasticdl.master.core.evaluation import Evaluation

AddUp = Callable[[str, Sequence[bytes]], bytes]
"""Adds up the results of all tasks, in the order of the tasks; the text says what each consists of."""
ResultSize = Callable[[str], int | None]
"""The bytes of a task's result, by the text that says what it consists of; None: any. Raises ValueError for what describes none."""


def bad_metrics(metrics: str, known: str | None, result_size: ResultSize) -> str | None:
    """Return why nobody evaluates these metrics, None if one may: all have those of the same model file, of which `known` are."""
    if known is not None and metrics != known:
        return "other metrics than another member has"
    try:
        result_size(metrics)
    except ValueError as error:
        return f"metrics that can't be read: {error}"
    return None


def bad_result(
    result: TaskResult, plan: OnePass | None, evaluation: Evaluation | None, result_size: ResultSize
) -> str | None:
    """Return why no evaluation task has this result, None if one may; `evaluation`: what is evaluated now."""
    state, task, body = result.state, result.task, result.body
    if plan is None or task >= plan.num_tasks:
        return f"a result of evaluation task {task}, which there is not"
    if len(body) > MOST_BYTES // plan.num_tasks:
        return f"a result of {len(body):,} bytes, one of {plan.num_tasks}, and all of them may have {MOST_BYTES:,}"
    if evaluation is None or evaluation.state != state:
        return None  # it counts for nothing
    size = result_size(evaluation.metrics)
    if size is None or len(body) == size:
        return None
    return f"a result of {len(body):,} bytes, and all have {size:,}"
