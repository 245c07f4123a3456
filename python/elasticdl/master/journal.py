"""The journal on a local disk: numbered files, each appended by compare-and-set (rules J1 to J3).

It knows what a record looks like on disk and nothing of what it means (`master/records.py` does). A record is one file, made by
`link(2)` from a synced draft, because that is the one step of a file system that fails if somebody else was first: a lock on one
long file would be kept by a stopped master, or lost by it unknowingly.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticdl.errors import BadData, BadSetting, JobFailed, JournalConflict
from elasticdl.master.records import FORMAT, Record, compact, record_from_json, record_to_json

_DRAFT = ".draft-"
_ATTEMPTS = 5
"""Readings of a directory that another master compacts meanwhile; each compaction can spoil one."""


class Journal:
    """One master's hands on the journal of a job.

    Files are `000001`, `000002`, …; a file is never changed, except that compaction replaces it by an empty one. The empty file
    must stay: it is what makes a stale master's append of that number fail.
    """

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which exists; the number of masters that do so at once is not limited."""
        self._directory = directory
        self._writer = secrets.token_hex(16)
        self._draft = directory / f"{_DRAFT}{self._writer}"

    def read(self) -> tuple[tuple[Record, ...], int]:
        """Return all records (perhaps compacted) and the number of the last one, 0 if there is none.

        Raises BadSetting for another format, JobFailed for a damaged journal; both leave it untouched.
        """
        for _ in range(_ATTEMPTS):
            numbers = self._numbers()
            if not numbers:
                return (), 0
            records = self._read_back_from(numbers[-1])
            if records is not None:
                return records, numbers[-1]
        raise JobFailed(
            f"the journal in {self._directory} is damaged: records are missing that no compaction covers"
        )

    def append(self, number: int, record: Record) -> None:
        """Append `record` as number `number`, durably, if no such number exists.

        May be repeated after an OSError (disk full, I/O error), which leaves open whether the record exists; until it returns,
        nothing that depends on the record may be told. Raises JournalConflict if another record of that number exists.
        """
        self._put(number, {"record": record_to_json(record)})

    def compact(self, length: int) -> tuple[tuple[Record, ...], int]:
        """Append a record that says what records 1 to `length` say, then empty those; return what `read` would.

        Safe beside other masters: the append is an ordinary one (raises JournalConflict), and numbers stay taken.
        """
        records, read = self.read()
        if read != length:
            raise JournalConflict(f"record {read} of the journal exists, expected {length} to be the last")
        kept = compact(records)
        self._put(length + 1, {"compacted": [record_to_json(record) for record in kept]})
        for number in range(length, 0, -1):
            path = self._path(number)
            if path.stat().st_size == 0:
                break  # an earlier compaction emptied this one and all before
            self._draft.write_bytes(b"")
            self._draft.rename(path)
        return kept, length + 1

    def tidy(self) -> None:
        """Remove drafts that killed masters left; a live one whose draft goes writes it again."""
        for path in self._directory.glob(f"{_DRAFT}*"):
            path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ reading

    def _numbers(self) -> list[int]:
        names = [path.name for path in self._directory.iterdir()]
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
        if numbers != list(range(1, len(numbers) + 1)):
            missing = sorted(set(range(1, numbers[-1])) - set(numbers))
            raise JobFailed(
                f"the journal in {self._directory} is damaged: record {missing[0]} of {numbers[-1]} is missing"
            )
        return numbers

    def _read_back_from(self, last: int) -> tuple[Record, ...] | None:
        """Return what the records up to `last` say; None if another master compacted them in the middle of reading."""
        later: list[Record] = []
        for number in range(last, 0, -1):
            content = self._path(number).read_bytes()
            if not content:
                return None
            body = self._parse(number, content)
            try:
                if "compacted" in body:
                    return (*map(record_from_json, body["compacted"]), *reversed(later))
                later.append(record_from_json(body["record"]))
            except (BadData, KeyError, TypeError) as error:
                raise self._damaged(number) from error
        return tuple(reversed(later))

    def _parse(self, number: int, content: bytes) -> dict[str, Any]:
        try:
            body = json.loads(content)
        except ValueError as error:
            raise self._damaged(number) from error
        if not isinstance(body, dict):
            raise self._damaged(number)
        if body.get("format") != FORMAT:
            raise BadSetting(
                f"record {number} of the journal in {self._directory} has format {body.get('format')!r}, this version of "
                f"elasticdl reads format {FORMAT}; use the version that started the job"
            )
        return body

    def _damaged(self, number: int) -> JobFailed:
        return JobFailed(f"the journal in {self._directory} is damaged: record {number} can't be read")

    # ------------------------------------------------------------------ writing

    def _put(self, number: int, content: dict[str, Any]) -> None:
        text = json.dumps(
            {"format": FORMAT, "writer": self._writer, **content}, separators=(",", ":"), sort_keys=True
        )
        body = (text + "\n").encode()
        try:
            self._write_draft(body)
            self._link(number, body)
            self._sync_directory()
        finally:
            with contextlib.suppress(OSError):
                self._draft.unlink(missing_ok=True)

    def _write_draft(self, body: bytes) -> None:
        # A new file for each attempt: after a failed fsync the old one's pages may count as clean without being on disk.
        self._draft.unlink(missing_ok=True)
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, body)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _link(self, number: int, body: bytes) -> None:
        if number > 1 and not self._path(number - 1).exists():
            raise JournalConflict(
                f"record {number} of the journal can't follow: there is no record {number - 1}"
            )
        try:
            os.link(self._draft, self._path(number))
        except FileExistsError:
            if self._path(number).read_bytes() != body:
                raise JournalConflict(
                    f"record {number} of the journal exists, another master wrote it"
                ) from None

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}"


def _write_all(descriptor: int, body: Sequence[int] | bytes) -> None:
    view = memoryview(bytes(body))
    while view:
        view = view[os.write(descriptor, view) :]
