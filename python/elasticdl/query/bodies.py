"""Which semicolons end statements, and which are inside the body of a trigger, a procedure or a block: `BEGIN …; … END`.

Only statements that may have such a body are looked at. Blocks are known by the words that begin and end them; most of those words can be
names or functions as well, so what stands beside them counts.

SQLite: https://www.sqlite.org/lang_createtrigger.html. MySQL: https://dev.mysql.com/doc/refman/8.4/en/sql-compound-statements.html, and
MariaDB beside it: https://mariadb.com/kb/en/programmatic-compound-statements/. PostgreSQL has BEGIN ATOMIC; else its bodies are strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.query.tokens import Token

_MADE = {
    "sqlite": ("TRIGGER",),
    "mysql": ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT"),
    "postgres": ("PROCEDURE", "FUNCTION"),
}
"""What has a body, by dialects."""
_HEADER = 16
"""Tokens among which the kind is named: CREATE OR REPLACE DEFINER = 'a'@'b' SQL SECURITY INVOKER PROCEDURE."""
_BEFORE_A_NAME = (
    ".",
    ",",
    "(",
    "=",
    "<",
    ">",
    "SELECT",
    "AS",
    "BY",
    "SET",
    "OF",
    "WHERE",
    "AND",
    "OR",
    "NOT",
)
"""After these, `begin` is the name of a column."""
_IN_TRIGGERS = ("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH")
"""What statements in a trigger of SQLite begin with."""


class UnendedBlock(Exception):
    """A block does not end.

    Attributes:
        at: the token that begins it.
    """

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def ends(tokens: Sequence[Token], dialect: str) -> Iterator[int]:
    """Yield which semicolons end statements, and after them the number of tokens. Raises UnendedBlock."""
    first = 0
    while first < len(tokens):
        at = _end(tokens, first, dialect)
        yield at
        first = at + 1


def _end(tokens: Sequence[Token], first: int, dialect: str) -> int:
    blocks = _Blocks(tokens, dialect) if _has_body(tokens, first, dialect) else None
    for at in range(first, len(tokens)):
        if blocks is not None:
            blocks.see(at)
        if tokens[at].is_word(";") and (blocks is None or not blocks.open):
            return at
    if blocks is not None and blocks.open:
        raise UnendedBlock(blocks.open[0])
    return len(tokens)


def _has_body(tokens: Sequence[Token], first: int, dialect: str) -> bool:
    """Tell whether a statement may have a body with semicolons."""
    if dialect == "mysql" and [one.text.upper() for one in tokens[first : first + 3]] == [
        "BEGIN",
        "NOT",
        "ATOMIC",
    ]:
        return True
    if dialect not in _MADE or not tokens[first].is_word("CREATE"):
        return False
    for token in tokens[first : first + _HEADER]:
        if token.is_word(";", "(", "AS"):
            return False
        if token.is_word(*_MADE[dialect]):
            return True
    return False


class _Blocks:
    """The blocks that are open, from the outermost; tokens of one statement are seen in their order.

    Attributes:
        open: the tokens that begin them.
    """

    def __init__(self, tokens: Sequence[Token], dialect: str) -> None:
        self._tokens = tokens
        self._dialect = dialect
        self.open: list[int] = []

    def see(self, at: int) -> None:
        """Take the next token into account."""
        if self._word(at) == "END":
            if self.open and self._closes(at):
                self.open.pop()
        elif self._word(at - 1) != "END" and self._opens(at):
            self.open.append(at)

    def _closes(self, at: int) -> bool:
        match self._word(self.open[-1]):
            case "BEGIN":  # in a block each statement ends with a semicolon, so `end` elsewhere is a name
                return self._word(at - 1) in (";", "BEGIN", "ATOMIC")
            case "CASE":
                return self._word(at - 1) != "."
            case word:
                return self._word(at + 1) == word

    def _opens(self, at: int) -> bool:
        word, following = self._word(at), self._word(at + 1)
        if word == "BEGIN":
            if self._dialect == "sqlite":
                return following in _IN_TRIGGERS
            if self._dialect == "postgres":
                return following == "ATOMIC"
            return self._word(at - 1) not in _BEFORE_A_NAME
        if word == "CASE":
            return True
        if self._dialect != "mysql":
            return False
        match word:
            case "IF":
                return self._is_statement_if(at)
            case "REPEAT":
                return following != "("  # a function
            case "FOR":
                return self._word(at + 2) == "IN"  # not FOR EACH ROW, FOR UPDATE, CURSOR FOR
            case _:
                return word in ("LOOP", "WHILE")

    def _is_statement_if(self, at: int) -> bool:
        """Tell an IF that needs its END IF from the function of three arguments, and from DROP TABLE IF EXISTS name."""
        following = at + 1 + (self._word(at + 1) == "NOT")
        if self._word(following) == "EXISTS":
            return self._word(following + 1) == "("
        return self._word(at + 1) != "(" or self._commas(at + 1) != 2

    def _commas(self, at: int) -> int:
        """Return how many commas are between a bracket and the one that closes it, outside of others."""
        depth = count = 0
        for one in range(at, len(self._tokens)):
            word = self._word(one)
            depth += (word == "(") - (word == ")")
            if not depth:
                break
            count += word == "," and depth == 1
        return count

    def _word(self, at: int) -> str:
        """Return a token if it is unquoted, in upper case; empty for others, and where there is none."""
        if not 0 <= at < len(self._tokens):
            return ""
        token = self._tokens[at]
        return token.text.upper() if token.is_word(token.text.upper()) else ""
