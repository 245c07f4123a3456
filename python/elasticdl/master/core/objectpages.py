"""The journal's pages in one object of Kubernetes, updated by compare-and-set on its version (rule J2); no volume is needed."""

from __future__ import annotations

from elasticdl.cluster.kubernetes.items import Item, Stale
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

    @property
    def crowded(self) -> bool:
        """Tell whether the pages take half of what they may."""
        return self._known is not None and _size(self._known[0]) > SIZE_LIMIT // 2

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
        self._add(number, body, alone=False)

    def compact(self, number: int, body: bytes) -> None:
        """Add a page and remove those before it, in one update: there need not be room for both."""
        self._add(number, body, alone=True)

    def _add(self, number: int, body: bytes, *, alone: bool) -> None:
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
            kept = {name: text for name, text in texts.items() if not (alone and name.isdigit())}
            after = {**kept, _name(number): body.decode()}
            if alone:
                after[_FIRST] = str(number)
            if _size(after) > SIZE_LIMIT:
                raise JobFailed(
                    f"the journal in {self._where} would be larger than {SIZE_LIMIT:,} bytes; "
                    "fewer and larger data files keep it small"
                )
            if self._replace(after, version):
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


def _size(texts: dict[str, str]) -> int:
    return sum(map(len, texts.values()))


def _name(number: int) -> str:
    return f"{number:06d}"
