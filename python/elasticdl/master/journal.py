"""The journal: numbered records, each appended by compare-and-set (rules J1 to J3).

It knows what a record looks like when it is kept, and nothing of what it means (`master/records.py` does) nor of where it is kept:
pages on a disk (`filepages.py`) or in an object of Kubernetes (`objectpages.py`).
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Protocol

from elasticdl.errors import BadData, BadSetting, JobFailed, JournalConflict
from elasticdl.master.records import FORMAT, Record, compact, record_from_json, record_to_json

_ATTEMPTS = 5
"""Readings of pages that another master compacts meanwhile; each compaction can spoil one."""


class Pages(Protocol):
    """Numbered pages, each written once by whoever is first.

    A page is never changed, except that it may be emptied. An emptied one stays taken: that is what makes a stale master's append
    of that number fail.
    """

    @property
    def where(self) -> str:
        """Where they are kept, for messages."""

    def numbers(self) -> list[int]:
        """Return the numbers that are taken, in order. Raises OSError."""

    def read(self, number: int) -> bytes:
        """Return a page, nothing of an emptied one. Raises OSError."""

    def write(self, number: int, body: bytes) -> None:
        """Write page `number`, durably, if it is the next one or this very page is there already.

        Raises JournalConflict if it is not; OSError, which leaves open whether it is there now, and after which the call may be
        repeated.
        """

    def empty(self, number: int) -> None:
        """Empty the pages up to `number`. Raises OSError."""

    def tidy(self) -> None:
        """Remove what killed writers left beside the pages."""


class Journal:
    """One master's hands on the journal of a job."""

    def __init__(self, pages: Pages) -> None:
        """Use `pages`; the number of masters that do so at once is not limited."""
        self._pages = pages
        self._writer = secrets.token_hex(16)

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
            f"the journal in {self._pages.where} is damaged: records are missing that no compaction covers"
        )

    def append(self, number: int, record: Record) -> None:
        """Append `record` as number `number`, durably, if no such number exists.

        May be repeated after an OSError (disk full, I/O error), which leaves open whether the record exists; until it returns,
        nothing that depends on the record may be told. Raises JournalConflict if another record of that number exists.
        """
        self._put(number, {"record": record_to_json(record)})

    def has(self, number: int) -> bool:
        """Tell whether record `number` exists, whoever wrote it. Raises OSError."""
        return number in self._pages.numbers()

    def compact(self, length: int) -> tuple[tuple[Record, ...], int]:
        """Append a record that says what records 1 to `length` say, then empty those; return what `read` would.

        Safe beside other masters: the append is an ordinary one (raises JournalConflict), and numbers stay taken.
        """
        records, read = self.read()
        if read != length:
            raise JournalConflict(f"record {read} of the journal exists, expected {length} to be the last")
        kept = compact(records)
        self._put(length + 1, {"compacted": [record_to_json(record) for record in kept]})
        self._pages.empty(length)
        return kept, length + 1

    def tidy(self) -> None:
        """Remove what killed masters left beside the records."""
        self._pages.tidy()

    # ------------------------------------------------------------------ reading

    def _numbers(self) -> list[int]:
        numbers = self._pages.numbers()
        if numbers != list(range(1, len(numbers) + 1)):
            missing = sorted(set(range(1, numbers[-1])) - set(numbers))
            raise JobFailed(
                f"the journal in {self._pages.where} is damaged: record {missing[0]} of {numbers[-1]} is missing"
            )
        return numbers

    def _read_back_from(self, last: int) -> tuple[Record, ...] | None:
        """Return what the records up to `last` say; None if another master compacted them in the middle of reading."""
        later: list[Record] = []
        for number in range(last, 0, -1):
            content = self._pages.read(number)
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
                f"record {number} of the journal in {self._pages.where} has format {body.get('format')!r}, this version of "
                f"elasticdl reads format {FORMAT}; use the version that started the job"
            )
        return body

    def _damaged(self, number: int) -> JobFailed:
        return JobFailed(f"the journal in {self._pages.where} is damaged: record {number} can't be read")

    def _put(self, number: int, content: dict[str, Any]) -> None:
        text = json.dumps(
            {"format": FORMAT, "writer": self._writer, **content}, separators=(",", ":"), sort_keys=True
        )
        self._pages.write(number, (text + "\n").encode())
