"""Folders of checkpoints: what they are called, which one is meant by a path, and whether all of one is there.

A checkpoint is written in a folder beside (`.checkpoint-3.draft`), which gets its name (`checkpoint-3`) when the manifest is in it: so one
that has its name is whole, or was damaged later. Members of a group write to a draft that is named by what they copy, because only its
master knows the number. Nothing here reads slots: servers verify what they read, and `comparing.py` all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elasticdl.checkpoint.manifest import NAME, Kind, Manifest, check_sizes, read_body, read_servers
from elasticdl.errors import BadData, BadSetting

if TYPE_CHECKING:
    from elasticdl.checkpoint.group import GroupManifest

_PREFIX = "checkpoint-"
_OF_GROUP = re.compile(rf"\.{_PREFIX}step-(\d+)-view-\d+(-passed)?\.draft")

AnyManifest = TypeVar("AnyManifest", bound="Manifest | GroupManifest")


def folder_of(directory: Path, number: int) -> Path:
    """Return the folder of a checkpoint."""
    return directory / f"{_PREFIX}{number}"


def draft_of(directory: Path, number: int) -> Path:
    """Return the folder in which a checkpoint is written."""
    return directory / f".{_PREFIX}{number}.draft"


def group_draft_of(directory: Path, view: int, step: int, *, passed: bool) -> Path:
    """Return the folder in which the members of a view write their parts of a state, before or after they have passed its gate."""
    return directory / f".{_PREFIX}step-{step}-view-{view}{'-passed' if passed else ''}.draft"


def make_draft(folder: Path) -> None:
    """Make the folder in which a checkpoint is written, unless another server has. Raises OSError, also for a link of that name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise NotADirectoryError(
            errno.ENOTDIR, "it is a link, and a checkpoint is written to a folder", str(folder)
        )


def numbers(directory: Path) -> list[int]:
    """Return the numbers of the checkpoints in a directory, ascending; none if there is no such directory. Raises OSError."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    found = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return sorted(int(number) for number in found if number.isascii() and number.isdigit())


def locate(path: Path, flag: str) -> Path:
    """Return the folder of the checkpoint that a path means: its own, or the newest in a directory of them.

    `flag` is how the path's writer calls it. Raises BadSetting.
    """
    return candidates(path, flag)[0]


def candidates(path: Path, flag: str) -> list[Path]:
    """Return the folders of the checkpoints that a path may mean: its own, or all in a directory of them, the newest first.

    `flag` is how the path's writer calls it. Raises BadSetting if there is none.
    """
    try:
        if (path / NAME).exists():
            return [path]
        if not path.is_dir():
            what = "is no directory" if path.exists() else "does not exist"
            remedy = "; weights in a file are for --trained_model, or for the model function to load"
            raise BadSetting(
                f"{flag}: {str(path)!r} {what}; name a checkpoint, or a directory of checkpoints{remedy * path.is_file()}"
            )
        found = [number for number in numbers(path) if (folder_of(path, number) / NAME).exists()]
    except OSError as error:
        raise BadSetting(f"{flag}: {str(path)!r} can't be read: {error.strerror}") from None
    if not found:
        raise BadSetting(
            f"{flag}: there is no whole checkpoint in {str(path)!r}: no folder in it has a {NAME}"
        )
    return [folder_of(path, number) for number in reversed(found)]


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint of servers and look whether all its files are there, as long as they have to be. Raises BadData."""
    return _whole(read_body(folder / NAME, {Kind.SERVERS: read_servers}))


def read_of_group(folder: Path) -> GroupManifest:
    """Do the same for a checkpoint of a synchronous job. Raises BadData."""
    return _whole(read_body(folder / NAME, {Kind.GROUP: _read_group}))


def _read_group(path: Path, body: Mapping[str, Any]) -> GroupManifest:
    # not at the top: it imports NumPy, whose threads a parameter server must not have before it has blocked SIGTERM for all of its own
    from elasticdl.checkpoint.group import read_group

    return read_group(path, body)


_READERS: dict[Kind, Callable[[Path, Mapping[str, Any]], Manifest | GroupManifest]] = {
    Kind.SERVERS: read_servers,
    Kind.GROUP: _read_group,
}


def read_any(folder: Path) -> Manifest | GroupManifest:
    """Do the same for any checkpoint. Raises BadData."""
    return _whole(read_body(folder / NAME, _READERS))


def _whole(manifest: AnyManifest) -> AnyManifest:
    check_sizes(manifest.sizes())
    return manifest


def size_of(manifest: Manifest | GroupManifest) -> int:
    """Return the bytes of a checkpoint's slots or parts."""
    return sum(manifest.sizes().values())


def publish(directory: Path, number: int) -> Path:
    """Give a checkpoint whose manifest is written its name, durably; return the manifest's path. Raises OSError."""
    return publish_draft(draft_of(directory, number), directory, number)


def publish_draft(draft: Path, directory: Path, number: int) -> Path:
    """Do the same for a draft of any name; it may have been done before. Raises OSError."""
    folder = folder_of(directory, number)
    try:
        draft.rename(folder)
    except FileNotFoundError:
        if not (folder / NAME).exists():
            raise
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return folder / NAME


def remove_older(directory: Path, kept: int, newest: int) -> None:
    """Remove all checkpoints up to number `newest` but the last `kept` (0: none), and what is left of those that were given up.

    The best one stays, too. What can't be removed stays.
    """
    with contextlib.suppress(OSError):
        older = [number for number in numbers(directory) if number <= newest]
        folders = [folder_of(directory, number) for number in (older[:-kept] if kept else ())]
        best = _best_of(directory, older) if folders else None
        for folder in folders:
            if folder != best:
                _remove(folder)
        for draft in _drafts(directory):
            if _number_of_draft(draft) < newest:
                shutil.rmtree(draft, ignore_errors=True)


def remove_older_of_group(
    directory: Path, kept: int, newest: int, age: tuple[int, bool], spared: Collection[Path]
) -> None:
    """Do the same for a group.

    `age`: of the newest one, its step and whether its gate was passed. A state may be saved before its gate and after it, and while the
    first of the two gets its name the other is still written. The best one stays, too, and those whose manifest is `spared`.
    """
    with contextlib.suppress(OSError):
        older = [number for number in numbers(directory) if number <= newest]
        folders = [folder_of(directory, number) for number in (older[:-kept] if kept else ())]
        best = _best_of(directory, older) if folders else None
        for folder in folders:
            if folder != best and folder / NAME not in spared:
                _remove(folder)
        for draft in directory.glob(f".{_PREFIX}step-*.draft"):
            found = _OF_GROUP.fullmatch(draft.name)
            if found is not None and (int(found[1]), found[2] is not None) <= age:
                shutil.rmtree(draft, ignore_errors=True)


def _best_of(directory: Path, numbers: Sequence[int]) -> Path | None:
    """Return the newest checkpoint that was the best when it was written, None if there is none: each such is better than those before."""
    for number in reversed(numbers):
        folder = folder_of(directory, number)
        with contextlib.suppress(BadData):
            if read_body(folder / NAME, _READERS).is_best:
                return folder
    return None


def remove_drafts(directory: Path, names: Sequence[int] | None = None) -> None:
    """Remove what is left of checkpoints that were given up: those of these numbers, or all."""
    with contextlib.suppress(OSError):
        for draft in _drafts(directory):
            if names is None or _number_of_draft(draft) in names:
                shutil.rmtree(draft, ignore_errors=True)
        for draft in directory.glob(f".{_PREFIX}step-*.draft") if names is None else ():
            if _OF_GROUP.fullmatch(draft.name):
                shutil.rmtree(draft, ignore_errors=True)


def _remove(folder: Path) -> None:
    # Without its manifest it is nobody's checkpoint any more, wherever the rest of this is interrupted.
    (folder / NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _drafts(directory: Path) -> Iterator[Path]:
    for path in directory.glob(f".{_PREFIX}*.draft"):
        if _number_of_draft(path) >= 0:
            yield path


def _number_of_draft(path: Path) -> int:
    number = path.name.removeprefix(f".{_PREFIX}").removesuffix(".draft")
    return int(number) if number.isascii() and number.isdigit() else -1
