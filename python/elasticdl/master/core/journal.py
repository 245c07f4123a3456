"""The journal: numbered records, each appended by compare-and-set (rules J1 to J3).

It knows what a record looks like when it is kept, and nothing of what it means (`records.py` does) nor of where it is kept:
pages on a disk (`filepages.py`) or in an object of Kubernetes (`objectpages.py`).
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Protocol

from elasticdl.errors import BadData, BadSetting, JobFailed, JournalConflict
from elasticdl.files import reading
from elasticdl.master.core.recordforms import FORMAT, record_from_json, record_to_json
from elasticdl.master.core.records import Record, compact, read_journal

REPLACED = 75
"""Exit code of a master that another one has replaced: not the job's end (EX_TEMPFAIL of sysexits.h)."""
_ATTEMPTS = 5
"""Readings of pages that another master compacts meanwhile; each compaction can spoil one."""


class Pages(Protocol):
    """Numbered pages, each written once by the first master that does.

    A page is never changed, except that it may be emptied. An emptied one stays taken: that is what makes a stale master's append
    of that number fail.
    """

    @property
    def where(self) -> str:
        """Where they are kept, for messages."""

    @property
    def crowded(self) -> bool:
        """Tell whether half of the room is taken, as far as this writer knows."""

    def numbers(self) -> list[int]:
        """Return the numbers that are taken, in order. Raises OSError."""

    def read(self, number: int) -> bytes:
        """Return a page, nothing of an emptied one. Raises OSError."""

    def write(self, number: int, body: bytes) -> None:
        """Write page `number`, durably, if it is the next one or this very page is there already.

        Raises JournalConflict if it is not; OSError, which leaves open whether it is there now, and after which the call may be
        repeated.
        """

    def compact(self, number: int, body: bytes) -> None:
        """Write page `number` as `write` does, and empty those before it."""

    def tidy(self) -> None:
        """Remove what killed writers left beside the pages."""


class Journal:
    """One master's hands on the journal of a job."""

    def __init__(self, pages: Pages) -> None:
        """Use `pages`; the number of masters that do so at once is not limited."""
        self._pages = pages
        self._writer = secrets.token_hex(16)
        self._inserted = 0
        """Compactions since `read`: numbers of which the caller knows nothing."""
        self._written: tuple[int, bytes] | None = None
        """The page that was added last."""
        self._compaction: tuple[Record, ...] | None = None
        """What the compaction under way leaves; it may have taken effect although no answer came."""

    @property
    def where(self) -> str:
        """Return what people call the place where it is kept."""
        return self._pages.where

    def read(self) -> tuple[tuple[Record, ...], int]:
        """Return all records (perhaps compacted) and the number of the last one, 0 if there is none, from which `append` counts on.

        Raises BadSetting for another format, JobFailed for a damaged journal; both leave it untouched.
        """
        self._inserted, self._compaction = 0, None
        for _ in range(_ATTEMPTS):
            numbers = self._numbers()
            if not numbers:
                return (), 0
            records = self._read_back_from(numbers[-1])
            if records is not None:
                try:
                    read_journal(records)
                except BadData as error:
                    raise self.contradicts(str(error)) from error
                return records, numbers[-1]
        raise JobFailed(
            f"the journal in {self._pages.where} is damaged: records are missing that no compaction covers"
        )

    def append(self, number: int, record: Record) -> None:
        """Append `record` as number `number`, durably, if no such number exists.

        Where the room gets scarce, what there is is compacted after it; the numbers of the caller don't count that. May be repeated after
        an OSError (disk full, I/O error), which leaves open whether the record exists; until it returns, nothing that depends on the
        record may be told. Raises JournalConflict if another record of that number exists, or follows it already.
        """
        at = number + self._inserted
        page = at, self._body({"record": record_to_json(record)})
        if page != self._written:  # a compaction that is tried again may have emptied it
            self._pages.write(*page)
            self._written = page
        if self._compaction is not None or self._pages.crowded:
            self.compact(at)
            self._inserted += 1

    def has(self, number: int) -> bool:
        """Tell whether record `number` exists, from any writer. Raises OSError."""
        return number + self._inserted in self._pages.numbers()

    def compact(self, length: int) -> tuple[tuple[Record, ...], int]:
        """Append a record that says what records 1 to `length` say, and empty those; return what `read` would.

        May be repeated like `append`. Safe beside other masters: the append is an ordinary one (raises JournalConflict), and numbers stay
        taken.
        """
        if self._compaction is None:
            records = self._read_back_from(length)
            if records is None:
                raise JournalConflict(f"another master has compacted the journal in {self._pages.where}")
            self._compaction = compact(records)
        kept = self._compaction
        body = {"compacted": [record_to_json(record) for record in kept]}
        self._pages.compact(length + 1, self._body(body))
        self._compaction = None
        return kept, length + 1

    def contradicts(self, what: str) -> JobFailed:
        """Return the error for a journal that says what can't be, although each record can be read."""
        return JobFailed(
            f"the journal in {self._pages.where} says what can't be: {what}. No master can go on from it; start the job again, from its "
            "last checkpoint if there is one"
        )

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
                    return (*map(record_from_json, reading.items(body["compacted"])), *reversed(later))
                later.append(record_from_json(reading.field(body, "record")))
            except (BadData, ValueError) as error:
                raise self._damaged(number) from error
        return tuple(reversed(later))

    def _parse(self, number: int, content: bytes) -> dict[str, Any]:
        try:
            body = reading.fields(reading.load(content))
        except ValueError as error:
            raise self._damaged(number) from error
        if body.get("format") != FORMAT:
            raise BadSetting(
                f"record {number} of the journal in {self._pages.where} has format {body.get('format')!r}, this version of "
                f"elasticdl reads format {FORMAT}; use the version that started the job"
            )
        return body

    def _damaged(self, number: int) -> JobFailed:
        return JobFailed(f"the journal in {self._pages.where} is damaged: record {number} can't be read")

    def _body(self, content: dict[str, Any]) -> bytes:
        text = json.dumps(
            {"format": FORMAT, "writer": self._writer, **content}, separators=(",", ":"), sort_keys=True
        )
        return (text + "\n").encode()
