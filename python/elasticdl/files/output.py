"""What a job writes for people appears under its name when it is whole, and what was there stays until then."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import Unwritable
from elasticdl.files.result import check_replaceable


@contextmanager
def made_beside(path: str, name: str) -> Iterator[Path]:
    """Let a file or directory be written at the path that is yielded, called `name`, and give it the name `path` at the end.

    Folders that are missing are made. Whatever else is put beside what is yielded is removed. Raises OSError (no space, no permission),
    as what writes there may, with what was at `path` intact; also if that is a directory with anything but an earlier result.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, for a rename within one file system
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as room:
        written = Path(room) / name
        yield written
        check_replaceable(target)
        if target.is_dir():
            shutil.rmtree(target)
        written.replace(target)


def remove_drafts(target: Path) -> None:
    """Remove what killed processes left of `made_beside` at this path; a live one fails."""
    for room in target.parent.glob(f".{glob.escape(target.name)}.????????"):
        if room.is_dir() and not room.is_symlink():
            shutil.rmtree(room, ignore_errors=True)


def unpublished_path(output: Path, step: int, view: int) -> str:
    """Return where a result lies until its record stands: beside its final place, by the state's id."""
    return str(output.with_name(f".{output.stem}.step-{step}-view-{view}{output.suffix}"))


def output_unwritable(output: Path, error: OSError) -> Unwritable:
    """Return what is said of a result that can't be written."""
    then = (
        "start the job again; after one with --checkpoint_dir `elasticdl export` writes the model from there"
    )
    return Unwritable(f"the model can't be written to {output}", error, then)
