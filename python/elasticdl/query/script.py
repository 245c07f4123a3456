"""The text that statements are in, and messages that point into it.

A message is `FILE:LINE: what is wrong`, then the line, then carets below the piece. Chinese, Japanese and Korean characters are two columns
wide in a terminal, so carets are moved by what characters take, not by their number.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from elasticdl.errors import BadStatement

_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Script:
    """A text with statements.

    Attributes:
        text: all of it.
        filename: how messages call it.
    """

    text: str = field(repr=False)
    filename: str = "sql"

    def line(self, at: int) -> int:
        """Return the number of the line of a character, from 1."""
        return self.text.count("\n", 0, at) + 1

    def error(self, at: int, message: str, length: int = 1) -> BadStatement:
        """Return an error that points at `length` characters from `at`; its message is that of the first line."""
        at = min(at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : end if end >= 0 else len(self.text)]
        first = at - start
        cut = max(0, first - _LONGEST + 40)  # one statement may be one very long line
        shown = line[cut : cut + _LONGEST].rstrip()
        pad = "".join(
            "\t" if character == "\t" else " " * _columns(character) for character in line[cut:first]
        )
        marked = line[first : min(first + max(length, 1), cut + _LONGEST)].rstrip()
        carets = "^" * max(1, sum(map(_columns, marked)))
        return BadStatement(f"{self.filename}:{self.line(at)}: {message}\n  {shown}\n  {pad}{carets}")


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a script.

    Attributes:
        script: the script.
        start: its first character.
        end: behind its last character.
    """

    script: Script
    start: int
    end: int

    @property
    def text(self) -> str:
        """Return the piece."""
        return self.script.text[self.start : self.end]

    def error(self, message: str) -> BadStatement:
        """Return an error that points here."""
        return self.script.error(self.start, message, self.end - self.start)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
