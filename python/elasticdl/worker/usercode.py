"""Running a user's code for the first time, with errors that name the file, what raised, and what `feed` gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe

FIRST_STEP = "the first training step failed"
FIRST_OUTPUTS = "the model failed on the first records"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function of a model file, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def run(user: UserModel, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function of a model file. Raises BadModel if it raises anything."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        raise failure(user, f"{function_name(function)} failed", error) from error


def failure(user: UserModel, what: str, error: Exception, given: str = "") -> BadModel:
    """Return what is said of an exception of the user's code; `given`: what `feed` gave, not shown if empty."""
    fed = f"\nfeed gave {given}" if given else ""
    return BadModel(f"{user.path}: {what}: {describe(error, user.path)}{fed}")


def no_example(user: UserModel, sample: Records) -> BadData:
    """Return what is said if `feed` makes nothing of the records with which an evaluation is tried."""
    return BadData(
        f"{user.path}: feed made no example of the first {len(sample)} records of the evaluation data; metrics can't be tried"
    )


@contextmanager
def first_evaluation(user: UserModel, given: str) -> Iterator[None]:
    """Raise BadModel for what the user's code raises meanwhile; `given`: what `feed` gave."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise failure(user, "the evaluation of the first chunk failed", error, given) from error


def try_evaluation(
    evaluator: Evaluator,
    user: UserModel,
    sample: Records,
    shown: Callable[[Any], str],
    rows: Callable[[Any], Sequence[Any]] = lambda batch: (),
) -> None:
    """Evaluate a chunk of the evaluation data, and forget it.

    `shown`: what `feed` gave, of what the evaluator converted; `rows`: those with which that is evaluated. Raises BadModel or BadData.
    """
    batch = evaluator.convert(sample)
    if not batch.examples:
        raise no_example(user, sample)
    with first_evaluation(user, shown(batch)):
        evaluator.begin_task(0)
        evaluator.evaluate(batch, rows(batch))
        evaluator.metric_values(evaluator.task_state())
    evaluator.begin_task(0)
