"""The journal's pages in one object of Kubernetes, updated by compare-and-set on its version (rule J2); no volume is needed."""

from __future__ import annotations

from elasticdl.cluster.items import Item, Stale
from elasticdl.errors import JobFailed, JournalConflict

SIZE_LIMIT = 900_000
"""Bytes of all pages; Kubernetes takes objects of a little more than a million."""

_FIRST = "first"
"""Key of the number of the first page that has not been emptied."""


class ObjectPages:
    """Texts `000001`, `000002`, … of an object; those of emptied pages are gone, and `first` says up to where."""

    def __init__(self, item: Item, where: str) -> None:
        """Use `item`, which exists; `where` names it in messages."""
        self._item = item
        self._where = where
        self._known: tuple[dict[str, str], str] | None = None

    @property
    def where(self) -> str:
        """Return the object's name."""
        return self._where

    def numbers(self) -> list[int]:
        """Return the numbers that were ever written."""
        texts, _ = self._known = self._item.read()
        return [
            *range(1, int(texts.get(_FIRST, "1"))),
            *sorted(int(name) for name in texts if name.isdigit()),
        ]

    def read(self, number: int) -> bytes:
        """Return a page as it was when `numbers` was last called."""
        texts, _ = self._load()
        return texts.get(_name(number), "").encode()

    def write(self, number: int, body: bytes) -> None:
        """Add a page; others may have changed the object, which is no conflict as long as the number is free."""
        while True:
            texts, version = self._load()
            there = texts.get(_name(number))
            if there is not None and there.encode() == body:
                return
            if there is not None or number < int(texts.get(_FIRST, "1")):
                raise JournalConflict(f"record {number} of the journal exists, another master wrote it")
            if number > 1 and _name(number - 1) not in texts:
                raise JournalConflict(
                    f"record {number} of the journal can't follow: there is no record {number - 1}"
                )
            after = {**texts, _name(number): body.decode()}
            if sum(map(len, after.values())) > SIZE_LIMIT:
                raise JobFailed(
                    f"the journal in {self._where} would be larger than {SIZE_LIMIT:,} bytes; "
                    "fewer and larger data files keep it small"
                )
            if self._replace(after, version):
                return

    def empty(self, number: int) -> None:
        """Remove pages."""
        while True:
            texts, version = self._load()
            kept = {name: text for name, text in texts.items() if not name.isdigit() or int(name) > number}
            if self._replace({**kept, _FIRST: str(number + 1)}, version):
                return

    def tidy(self) -> None:
        """Do nothing: an update leaves nothing beside the object."""

    def _load(self) -> tuple[dict[str, str], str]:
        if self._known is None:
            self._known = self._item.read()
        return self._known

    def _replace(self, texts: dict[str, str], version: str) -> bool:
        """Replace the texts; False if somebody else was faster. What is known is forgotten whenever it may be wrong."""
        self._known = None
        try:
            self._known = texts, self._item.replace(texts, version)
        except Stale:
            return False
        return True


def _name(number: int) -> str:
    return f"{number:06d}"
