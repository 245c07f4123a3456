"""Where a worker writes the job's result, and what is said if that can't be written: the same in both ways of training.

It publishes nothing: the master gives the result its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticdl.files.output import output_unwritable, unpublished_path


@contextmanager
def written_result(output: Path | None, step: int, view: int) -> Iterator[str]:
    """Let the result of a step be written at the path that is yielded; without one nothing is written.

    That is so if no output is wanted, and if nothing was trained. Raises Unwritable, which names the output, if the disk does not take
    it: another life of the worker, maybe elsewhere, tries once more.
    """
    try:
        yield unpublished_path(output, step, view) if output is not None and step else ""
    except OSError as error:
        assert output is not None, "without a path nothing is written"
        raise output_unwritable(output, error) from None
