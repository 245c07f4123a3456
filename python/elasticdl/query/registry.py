"""Trained models by name: each training is a version, a directory that never changes once its last file, `model.json`, is there.

`STORE/NAME/TIME-xxxx/` is a version, `STORE/.work/TIME-xxxx/` what a statement needs while it runs, such as its snapshot. Who makes one of
them holds a lock on it, so that the next one can tell what a killed process has left. Between two halves of a statement that run in pods
nobody does: a file says for which run they stay.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from elasticdl.errors import BadSetting, Unwritable
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE, PRIVATE_FOLDER
from elasticdl.files.reading import fields, load_file
from elasticdl.spec.nearest import nearest

COMMIT = "model.json"
"""The file of a version that is written last."""
_LOCK = ".lock"
_KEPT = "kept.txt"
_KEPT_SECONDS = 7 * 24 * 3600
"""For which the files of a failed statement stay."""
_HELD = "held.txt"
_HELD_SECONDS = 30 * 24 * 3600
"""For which files stay that the second half of a statement never came for: longer than any job trains."""
_WORK = ".work"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VERSION = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{4}")


class Kept(dict[str, Any]):
    """The fields of a version's `model.json`; one that is not there is BadSetting, which says how to get rid of the version."""

    def __init__(self, found: Mapping[str, Any], version: str, file: Path, problem: str = "") -> None:
        """`problem`: why nothing could be read."""
        super().__init__(found)
        self.problem = problem
        self._version = version
        self._file = file

    def __missing__(self, name: str) -> Any:
        raise self.broken(f"there is no {name!r}")

    def broken(self, problem: str) -> BadSetting:
        """Return what is said of a version of which something can't be read."""
        return BadSetting(
            f"the model {self._version} can't be read: {self._file}: {self.problem or problem}; DROP MODEL {self._version} removes it"
        )


@dataclass(frozen=True, slots=True)
class Version:
    """A trained model.

    Attributes:
        name: of the model.
        version: which of its trainings, as in `NAME@VERSION`.
        directory: its files.
        json: what `model.json` says.
    """

    name: str
    version: str
    directory: Path
    json: Kept

    @classmethod
    def of(
        cls, name: str, version: str, directory: Path, json: Mapping[str, Any], problem: str = ""
    ) -> Version:
        """Return a version; `problem`: why nothing could be read of it."""
        return cls(name, version, directory, Kept(json, f"{name}@{version}", directory / COMMIT, problem))

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def check_name(name: str) -> None:
    """Raise BadSetting unless a model may have this name."""
    if not _NAME.fullmatch(name):
        raise BadSetting(
            f"{name!r} can't be the name of a model: it has up to 64 letters of ASCII, digits, '_', '.' and '-', and begins with a "
            "letter or digit"
        )


def store_of(given: str, environment: Mapping[str, str]) -> Path:
    """Return where models are kept: `given`, unless that is empty. Raises BadSetting for a URL."""
    if given := given or environment.get("ELASTICDL_STORE", ""):
        if "://" in given:  # as a path it would be a directory with that name here
            raise BadSetting(
                f"--store: jobs write models and audits to a directory, and not to a URL; name a directory, of a bucket one where it is "
                f"mounted; received {given!r}"
            )
        return Path(given)
    data = environment.get("XDG_DATA_HOME") or str(
        Path(environment.get("HOME") or "~").expanduser() / ".local" / "share"
    )
    return Path(data) / "elasticdl" / "models"


def version_name(now: datetime, newest: str | None, token: str) -> str:
    """Return a name that is behind that of the newest version, also if the clock was set back; `token`: four hexadecimal digits."""
    if newest is not None:
        now = max(now, _time_of(newest) + timedelta(milliseconds=1))
    return f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}Z-{token}"


def _time_of(version: str) -> datetime:
    return datetime.strptime(version[:18] + "000", "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)


class Store:
    """A directory of models."""

    def __init__(self, path: Path) -> None:
        """Nothing is made yet."""
        self.path = path

    def begin(self, name: str, version: str | None = None) -> Entry:
        """Make a version that nobody sees yet; `version`: what it is called, if it comes from another store.

        Raises BadSetting, Unwritable.
        """
        check_name(name)
        if version is not None and not _VERSION.fullmatch(version):
            raise BadSetting(f"{version!r} is no version of the model {name}")
        with self._writable(), self._guarded():
            model = self.path / name
            model.mkdir(PRIVATE_FOLDER, exist_ok=True)
            _sweep(model, lambda directory: not (directory / COMMIT).exists() and _is_left(directory))
            names = [path.name for path in model.iterdir() if _VERSION.fullmatch(path.name)]
            version = version or version_name(
                datetime.now(UTC), max(names, default=None), secrets.token_hex(2)
            )
            return Entry(name, version, _locked_directory(model / version))

    def work(self) -> Work:
        """Make a directory for what a statement needs while it runs. Raises Unwritable."""
        with self._writable(), self._guarded():
            room = self.path / _WORK
            room.mkdir(PRIVATE_FOLDER, exist_ok=True)
            _sweep(room, _is_left)
            name = version_name(datetime.now(UTC), None, secrets.token_hex(2))
            return Work(_locked_directory(room / name))

    def resume(self, name: str, version: str) -> Entry:
        """Take a version that was held, or has been committed since. Raises BadSetting if it is gone, Unwritable."""
        directory = self.path / name / version
        with self._writable():
            try:
                return Entry(name, version, _Locked(directory, _lock(directory / _LOCK, wait=True)))
            except FileNotFoundError:
                raise BadSetting(
                    f"the model {name} can't be kept: {directory} has been removed; run the statement again"
                ) from None

    def resume_work(self, name: str) -> Work | None:
        """Take a directory that was held; None if it is gone, which who takes it last sees to. Raises Unwritable."""
        directory = self.path / _WORK / name
        with self._writable():
            try:
                return Work(_Locked(directory, _lock(directory / _LOCK, wait=True)))
            except FileNotFoundError:
                return None

    def forget(self, run: str, why: str = "") -> list[Path]:
        """Remove what is held for a run that will not come for it; with a reason what a statement needed is kept for a week, and returned.

        Raises Unwritable.
        """
        kept = []
        with self._writable(), self._guarded():
            works = self.path / _WORK
            for room in (works, *(self.path / name for name in self._names())):
                for directory in room.iterdir() if room.is_dir() else ():
                    if (directory / COMMIT).exists() or not _is_held_for(directory, run):
                        continue
                    with suppress(OSError):  # a process that seemed to be lost is still at it
                        locked = _Locked(directory, _lock(directory / _LOCK, wait=False))
                        with Work(locked) as work:
                            if why and room == works:
                                work.keep(why)
                                kept.append(directory)
        return kept

    def find(self, reference: str) -> Version:
        """Return the newest version of `NAME`, or that of `NAME@PREFIX`. Raises BadSetting, also for one that can't be read."""
        found = self.named(reference)
        if found.json.problem:
            raise found.json.broken(found.json.problem)
        return found

    def named(self, reference: str) -> Version:
        """Return the version that `find` returns, also if it can't be read. Raises BadSetting if there is none."""
        name, at, prefix = reference.partition("@")
        check_name(name)
        found = [one for one in self._versions(name) if one.startswith(prefix)]
        if not found:
            raise self._not_found(name, prefix)
        if at and len(found) > 1 and prefix not in found:
            raise BadSetting(
                f"{reference} may be {', '.join(f'{name}@{one}' for one in found[-5:])}; write more of the version, or {name} for the "
                "newest"
            )
        return self._read(name, found[-1])

    def versions(self, like: str | None = None) -> tuple[Version, ...]:
        """Return all versions, by name and age, those that can't be read, too; `like`: a pattern of SQL for names."""
        pattern = None if like is None else _pattern(like)
        return tuple(
            self._read(name, version)
            for name in self._names()
            if pattern is None or pattern.fullmatch(name)
            for version in self._versions(name)
        )

    def drop(self, reference: str) -> int:
        """Remove all versions of `NAME`, or that of `NAME@PREFIX`, and return how many. Raises BadSetting, Unwritable."""
        name, at, _ = reference.partition("@")
        found = [self.named(reference).version] if at else self._versions(name)
        if not found:
            raise self._not_found(name, "")
        with self._writable(), self._guarded():
            for version in found:
                (self.path / name / version / COMMIT).unlink()  # from here on it is none
                shutil.rmtree(self.path / name / version)
            with suppress(OSError):  # another version is being made
                (self.path / name).rmdir()
        return len(found)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let one process at a time make and remove directories: what is made is locked before another one looks at it."""
        self.path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        lock = _lock(self.path / _LOCK, wait=True)
        try:
            yield
        finally:
            os.close(lock)

    # ------------------------------------------------------------------ reading

    def _names(self) -> list[str]:
        try:
            return sorted(
                path.name for path in self.path.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()
            )
        except FileNotFoundError:
            return []

    def _versions(self, name: str) -> list[str]:
        check_name(name)
        try:
            paths = list((self.path / name).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            path.name for path in paths if _VERSION.fullmatch(path.name) and (path / COMMIT).is_file()
        )

    def _read(self, name: str, version: str) -> Version:
        directory = self.path / name / version
        found: Mapping[str, Any] = {}
        problem = ""
        try:
            found = fields(load_file(directory / COMMIT))
        except (OSError, ValueError) as error:
            problem = str(error)
        return Version.of(name, version, directory, found, problem)

    def _not_found(self, name: str, prefix: str) -> BadSetting:
        if prefix and (known := self._versions(name)):
            return BadSetting(
                f"the model {name} has no version that begins with {prefix!r}; it has {', '.join(known[-5:])}"
            )
        known = [one for one in self._names() if self._versions(one)]
        hint = nearest(name, known) or ("; SHOW MODELS lists them" if known else "; there is none yet")
        return BadSetting(f"there is no model {name} in {self.path}{hint}")

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unwritable(
                f"models can't be kept in {self.path}", error, "try again, or name another place: --store"
            ) from error


class Entry:
    """A version while it is made: seen by nobody, locked, and removed at the end unless it was committed."""

    def __init__(self, name: str, version: str, directory: _Locked) -> None:
        self.name = name
        self.version = version
        self.directory = directory.path
        self._locked = directory
        self._held = False

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._held and not (self.directory / COMMIT).exists():
            shutil.rmtree(self.directory, ignore_errors=True)
        self._locked.release()

    def hold(self, run: str) -> None:
        """Let it stay for the second half of a run. Raises OSError."""
        replace_file(self.directory / _HELD, f"{run}\n", PRIVATE)
        self._held = True

    def commit(self, model: Mapping[str, Any]) -> Version:
        """Write `model.json`; from here on the version exists. Raises Unwritable."""
        try:
            replace_file(
                self.directory / COMMIT, json.dumps(model, ensure_ascii=False, indent=1) + "\n", PRIVATE
            )
            _sync(self.directory)
            _sync(self.directory.parent)
            (self.directory / _HELD).unlink(missing_ok=True)
        except OSError as error:
            raise Unwritable(
                f"the model {self.name} can't be kept in {self.directory}",
                error,
                "try again, or name another place: --store",
            ) from error
        return Version.of(self.name, self.version, self.directory, model)


class Work:
    """A directory for what a statement needs while it runs; it is removed at the end, unless it is kept."""

    def __init__(self, directory: _Locked) -> None:
        self.directory = directory.path
        self._locked = directory
        self._held = False

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._held and not (self.directory / _KEPT).exists():
            shutil.rmtree(self.directory, ignore_errors=True)
        self._locked.release()

    def hold(self, run: str) -> None:
        """Let it stay for the second half of a run. Raises OSError."""
        replace_file(self.directory / _HELD, f"{run}\n", PRIVATE)
        self._held = True

    def keep(self, why: str) -> None:
        """Let it stay for a week, for those who look for what went wrong. Raises OSError."""
        replace_file(self.directory / _KEPT, f"{why}\n", PRIVATE)
        (self.directory / _HELD).unlink(missing_ok=True)


_Room = TypeVar("_Room", Work, Entry)


class Rooms:
    """The directories of one statement, which are removed when it ends unless they were committed, kept or held."""

    def __init__(self, store: Store) -> None:
        """Nothing is made yet."""
        self._store = store
        self._stack = ExitStack()
        self._made: list[Work | Entry] = []

    def __enter__(self) -> Rooms:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def work(self) -> Work:
        """Make the directory for what the statement needs. Raises Unwritable."""
        return self.take(self._store.work())

    def entry(self, name: str) -> Entry:
        """Make a version of a model. Raises BadSetting, Unwritable."""
        return self.take(self._store.begin(name))

    def found(self, name: str, version: str) -> Entry:
        """Return a version that is being made: here, or by a process that has held it. Raises BadSetting if it is gone, Unwritable."""
        for one in self._made:
            if isinstance(one, Entry) and (one.name, one.version) == (name, version):
                return one
        return self.take(self._store.resume(name, version))

    def take(self, one: _Room) -> _Room:
        """Look after a directory that was made already."""
        self._stack.enter_context(one)
        self._made.append(one)
        return one

    def keep(self, why: str) -> list[Path]:
        """Let what the statement needed stay for a week, and return where it is. Raises OSError."""
        works = [one for one in self._made if isinstance(one, Work)]
        for one in works:
            one.keep(why)
        return [one.directory for one in works]

    def hold(self, run: str) -> None:
        """Let all of them stay for the second half of a run. Raises OSError."""
        for one in self._made:
            one.hold(run)


# ------------------------------------------------------------------ directories and locks


@dataclass(frozen=True, slots=True)
class _Locked:
    """A directory that this process holds."""

    path: Path
    lock: int

    def release(self) -> None:
        with suppress(OSError):
            (self.path / _LOCK).unlink()
        os.close(self.lock)


def _locked_directory(path: Path) -> _Locked:
    path.mkdir(PRIVATE_FOLDER)
    return _Locked(path, _lock(path / _LOCK, wait=False))


def _lock(path: Path, wait: bool) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(room: Path, is_left: Callable[[Path], bool]) -> None:
    """Remove what killed processes have left in a directory: what is not locked, and left by what it has in it."""
    for directory in room.iterdir():
        if not _VERSION.fullmatch(directory.name) or not is_left(directory):
            continue
        with suppress(OSError):
            lock = _lock(directory / _LOCK, wait=False)
            try:
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def _is_left(directory: Path) -> bool:
    return _is_past(directory / _KEPT, _KEPT_SECONDS) and _is_past(directory / _HELD, _HELD_SECONDS)


def _is_past(mark: Path, seconds: float) -> bool:
    try:
        return time.time() - mark.stat().st_mtime > seconds
    except FileNotFoundError:
        return True


def _is_held_for(directory: Path, run: str) -> bool:
    try:
        return (directory / _HELD).read_text(encoding="utf-8").strip() == run
    except OSError:
        return False


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pattern(like: str) -> re.Pattern[str]:
    """Return a pattern of SQL, in which `%` stands for any characters and `_` for one, as a regular expression."""
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(one, re.escape(one)) for one in like))
