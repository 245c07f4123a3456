"""Putting an exported result in its place, and removing exports that no record names.

Idempotent, because every master that reads `finished` does it again (rule D7). Earlier output stays whole until the new one is there.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from elasticdl.files.result import check_replaceable


def publish(exported: Path, output: Path) -> None:
    """Give `exported` (a file or a directory beside `output`) the name `output`.

    Raises OSError, also if a directory of that name holds anything but an earlier result.
    """
    if exported.exists():
        _put(exported, output)
    elif not output.exists():
        raise FileNotFoundError(2, "neither the export nor the output exists", str(exported))
    # else a master before this one did it, and may have been killed before it removed what was there
    for aside in list(_asides(output)):
        shutil.rmtree(aside, ignore_errors=True)


def _put(exported: Path, output: Path) -> None:
    if not output.is_dir() or output.is_symlink():
        exported.replace(output)
        return
    check_replaceable(output)
    # A directory can't replace one that is not empty: the old one steps aside for a moment. Its name is random and made for it alone, so
    # that nobody can have put a thing there that is in the way.
    aside = output.with_name(f".{output.name}.{secrets.token_hex(8)}.replaced")
    aside.mkdir(mode=0o700)
    try:
        output.rename(aside)
    except OSError:
        aside.rmdir()
        raise
    try:
        exported.rename(output)
    except OSError:
        aside.rename(output)
        raise


def _asides(output: Path) -> Iterator[Path]:
    """Yield what had stepped aside for this output, also for a master that was killed then."""
    name = re.compile(rf"\.{re.escape(output.name)}\.[0-9a-f]{{16}}\.replaced", re.DOTALL)
    with contextlib.suppress(OSError):
        for path in output.parent.iterdir():
            if name.fullmatch(path.name):
                yield path


def remove_unpublished(output: Path) -> None:
    """Remove exports of this output that were given up; what can't be removed stays."""
    for path in list(_unpublished(output)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _unpublished(output: Path) -> Iterator[Path]:
    """Yield what the workers' exporters left, by the state's id in the names; one that was killed leaves the folder that it wrote to."""
    front, back = f".{output.stem}.step-", output.suffix
    with contextlib.suppress(OSError):
        for path in output.parent.iterdir():
            whole = path.name.startswith(front) and path.name.endswith(back)
            if (whole or path.name.startswith(f".{front}")) and "-view-" in path.name:
                yield path
