"""Running a user's code for the first time, with errors that name the file, what raised, and what `feed` gave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticdl.data.plan.shard import Task
from elasticdl.errors import BadData, BadInput, BadModel
from elasticdl.spec.nearest import nearest
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe
from elasticdl.worker.raised import why

FIRST_STEP = "the first training step failed"
FIRST_OUTPUTS = "the model failed on the first records"

_SHOWN_COLUMNS = 30
"""Names of columns in a message; a table may have thousands."""
_ASKED = re.compile(
    r"\AKeyError: (?P<key>(['\"]).*\2)\Z|\AValueError: (?P<item>(['\"]).*\4) is not in list\Z"
)
"""What Python says of a name that a dict, or a list, does not have; TensorFlow quotes it behind frames."""
_SEPARATORS = ";\t|"
"""What separates fields of CSV where a comma does not."""
_SHOWN_NAME = 80
"""Characters of a column's name that may be a whole line."""


class MissingColumn(BadData):
    """What `feed` has asked for is no column of the data."""


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


def fed(user: UserModel, records: Records, mode: str, metadata: Any) -> Any:
    """Return what the user's `feed` makes of a chunk's records, which are arrays by name if they are columns.

    Raises BadData if it raises anything but OSError and MemoryError, which another try may not raise.
    """
    given = records.arrays if isinstance(records, Columns) else records
    try:
        return user.feed(given, mode, metadata)
    except (BadInput, OSError, MemoryError):
        raise
    except Exception as error:
        raise feed_failure(user.path, error, records, metadata) from error


def feed_failure(path: Path, error: Exception, records: Records, metadata: Any, then: str = "") -> BadData:
    """Return what is said of an exception of `feed`: of a column that the data lacks, which columns there are, and of fields that are not
    separated, what may separate them.

    `path`: the user's file; `metadata`: what the reader knows of the records; `then`: what is said behind.
    """
    text = f"{path}: feed failed: {describe(error, path)}{then}"
    columns = list(records.arrays if isinstance(records, Columns) else getattr(metadata, "column_names", ()))
    if len(columns) == 1 and (one := next((one for one in _SEPARATORS if one in columns[0]), "")):
        return BadData(
            f"{text}; a record has one field, {columns[0][:_SHOWN_NAME]!r}; if {one!r} separates fields, give "
            f'--data_reader_params="delimiter={one!r}"'
        )
    found = _ASKED.match(why(error))
    if not columns or found is None:
        return BadData(text)
    asked = (found["key"] or found["item"])[1:-1]
    if asked in columns:
        return BadData(text)
    more = f" and {len(columns) - _SHOWN_COLUMNS:,} more" if len(columns) > _SHOWN_COLUMNS else ""
    shown = ", ".join(columns[:_SHOWN_COLUMNS]) + more
    return MissingColumn(f"{text}; the data has no column {asked!r}{nearest(asked, columns)}; it has {shown}")


@contextmanager
def naming(task: Task) -> Iterator[None]:
    """Say of a column that is missing in the first records in which file or table that is."""
    try:
        yield
    except MissingColumn as error:
        raise BadData(f"{error} ({task.shard.name})") from error.__cause__


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
