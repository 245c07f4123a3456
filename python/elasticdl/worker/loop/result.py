"""The result of a program with a training loop: whole at its place, or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticdl.errors import BadModel
from elasticdl.files.output import made_beside
from elasticdl.worker.loop.ending import NO_RESULT


def writing(write: Callable[[str], object]) -> Callable[[str], object]:
    """Return what a program gives to write its result.

    Raises BadModel at once if it is no function: it is called only when training has ended.
    """
    if not callable(write):
        raise BadModel(
            f"job.result: expected a function that writes to the path that it is given; got a {type(write).__name__}"
        )
    return write


def written_by(write: Callable[[str], object] | None, path: str) -> None:
    """Let a program write its result beside `path`, and put it there when it is whole.

    Raises BadModel if the program has not said how, or writes nothing there.
    """
    if write is None:
        raise BadModel(NO_RESULT)
    with made_beside(path, Path(path).name) as written:
        try:
            write(str(written))
        except OSError as error:
            if not isinstance(name := error.filename, str) or Path(name).is_relative_to(written.parent):
                raise
            # Another file than the result: that is no matter of the result's disk.
            raise RuntimeError(f"job.result: {error}") from error
        if not written.exists():
            raise BadModel(
                f"job.result: the function has written nothing at {written}, the path that it is given"
            )
