"""Where statements of a script end, and where the SELECT in one of them ends.

A database's own text is taken apart by the tokenizer of its dialect, never by a parser: a parser refuses what it does not know. It tells
strings, comments, quoted names and brackets from the rest, and more is not asked of it. What follows the SELECT is ours, and is taken apart
again, by one tokenizer for all databases: SQLite's, for example, takes `[10, 10]` for a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from elasticdl.query import bodies
from elasticdl.query.script import Script

if TYPE_CHECKING:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.tokens import Tokenizer

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN", "RUN", "MAXIMIZE", "MINIMIZE")
"""What after an unquoted TO begins our part, those that are refused among them."""
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_NOT_BEFORE_LABEL = ("FROM", "JOIN", "AS", ",", ".", "SELECT")
"""After these, `label` is the name of a table or a column."""
_QUOTE_OR_COMMENT = re.compile(r"['\"`\[$]|--|/\*|#|\{#|//")
_TRIES = 200


class Kind(StrEnum):
    """What a token is."""

    NAME = "name"
    """Unquoted; keywords too."""
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text that belongs together.

    Attributes:
        kind: what it is.
        text: without its quotes.
        start: its first character, in the script.
        end: behind its last one.
    """

    kind: Kind
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Tell whether it is one of some words or signs, unquoted; words are given in upper case."""
        return self.kind in (Kind.NAME, Kind.SIGN) and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a script.

    Attributes:
        start: its first character.
        end: behind its last one, before the semicolon.
        tail: where our part begins; None if there is none.
        words: its first tokens, as the dialect has them.
    """

    start: int
    end: int
    tail: int | None
    words: tuple[Token, ...]


def pieces(script: Script, dialect: str) -> Iterator[Piece]:
    """Find a script's statements. Raises BadStatement where a string, comment or quoted name does not end."""
    tokens = _of_dialect(script, dialect)
    for token in tokens:
        if token.kind in (Kind.NAME, Kind.SIGN) and "；" in token.text:
            at = script.text.index("；", token.start)
            raise script.error(at, "this is a full-width semicolon, which ends no statement; write ;")
    first = 0
    try:
        for at in bodies.ends(tokens, dialect):
            if own := tokens[first:at]:
                yield Piece(own[0].start, own[-1].end, _tail(own), tuple(own[:4]))
            first = at + 1
    except bodies.UnendedBlock as block:
        token = tokens[block.at]
        word = token.text.upper()
        ending = "END" if word in ("BEGIN", "CASE") else f"END {word}"
        raise script.error(
            token.start, f"what begins here does not end; {word} needs {ending}", token.end - token.start
        ) from None


def neutral(script: Script, start: int, end: int) -> list[Token]:
    """Take our part apart. Raises BadStatement for what can't be in it."""
    found: list[Token] = []
    at = start
    while at < end:
        match = _NEUTRAL.match(script.text, at, end)
        if match is None:
            character = script.text[at]
            if character in "'\"`" or script.text.startswith("/*", at):
                what = "comment" if character == "/" else "string" if character == "'" else "quoted name"
                raise script.error(at, f"this {what} does not end")
            plain = _FULL_WIDTH.get(character)
            hint = f"; write {plain}" if plain else ""
            raise script.error(at, f"{character!r} has no meaning after the SELECT{hint}")
        kind, text = str(match.lastgroup), match.group()
        if kind != "space":
            if kind in ("string", "quoted"):
                text = text[1:-1].replace(text[0] * 2, text[0])
            found.append(Token(_KINDS[kind], text, at, match.end()))
        at = match.end()
    return found


_KINDS = {
    "name": Kind.NAME, "quoted": Kind.QUOTED, "string": Kind.STRING, "number": Kind.NUMBER, "sign": Kind.SIGN,
}  # fmt: skip
_NEUTRAL = re.compile(
    r"""(?P<space>(?:\s|--[^\n]*|\#[^\n]*|/\*.*?\*/)+)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![^\W\d]))
    | (?P<name>\w+)
    | (?P<sign>[-+=,.()\[\]*@])""",
    re.VERBOSE | re.DOTALL,
)
_FULL_WIDTH = dict(zip("，（）［］＝“”‘’。；＊", ",()[]=\"\"''.;*", strict=True))


def _tail(tokens: Sequence[Token]) -> int | None:
    """Return where our part of a statement begins, if it has one."""
    if not tokens[0].is_word(*_QUERIES):
        return None
    depth = 0
    label: int | None = None
    for at, token in enumerate(tokens):
        if token.kind is Kind.SIGN and token.text in _OPENING:
            depth += 1
        elif token.kind is Kind.SIGN and token.text in _CLOSING:
            depth -= 1
        elif depth == 0 and token.is_word("TO") and at + 1 < len(tokens) and tokens[at + 1].is_word(*VERBS):
            if at and not tokens[at - 1].is_word(*_NOT_BEFORE_LABEL, "SIMILAR"):
                return token.start
        elif (
            depth == 0
            and token.is_word("LABEL")
            and at
            and not tokens[at - 1].is_word(*_NOT_BEFORE_LABEL)
            and _is_seed(tokens[at:])
        ):
            label = token.start
    return label


def _is_seed(tokens: Sequence[Token]) -> bool:
    """Tell whether tokens are `LABEL name INTO model` and nothing more: the model's name has no space in it."""
    if len(tokens) < 4 or tokens[1].kind is Kind.SIGN or not tokens[2].is_word("INTO"):
        return False
    return all(before.end == after.start for before, after in pairwise(tokens[3:]))


def _of_dialect(script: Script, dialect: str) -> list[Token]:
    from sqlglot.errors import TokenError

    own = _dialect(dialect)
    try:
        raw = _tokenizer(own)(dialect=own).tokenize(script.text)
    except TokenError:
        at = _unfinished(script.text, own)
        raise script.error(at, f"what begins here does not end{_of_kind(script.text, at)}") from None
    return [
        Token(_kind(token.token_type.name, token.text), token.text, token.start, token.end + 1)
        for token in raw
    ]


def _kind(name: str, text: str) -> Kind:
    if "STRING" in name:
        return Kind.STRING
    if name == "IDENTIFIER":
        return Kind.QUOTED
    if name == "NUMBER":
        return Kind.NUMBER
    return Kind.NAME if text[:1] == "_" or text[:1].isalnum() else Kind.SIGN


def _unfinished(text: str, dialect: Dialect) -> int:
    """Return the last quote or comment before which the text can be taken apart: sqlglot's error has no place."""
    from sqlglot.errors import TokenError

    places = [match.start() for match in _QUOTE_OR_COMMENT.finditer(text)]
    for at in reversed(places[-_TRIES:]):
        try:
            _tokenizer(dialect)(dialect=dialect).tokenize(text[:at])
        except TokenError:
            continue
        return at
    return places[0] if places else 0


def _of_kind(text: str, at: int) -> str:
    match text[at : at + 1]:
        case "/":
            return "; a comment needs */"
        case "'" | '"' | "`" as quote:
            return f"; close it with {quote}"
        case _:
            return ""


def _dialect(name: str) -> Dialect:
    from sqlglot.dialects.dialect import Dialect

    return Dialect.get_or_raise(name if name in Dialect.classes or Dialect.get(name) else "")


@cache
def _tokenizer(dialect: Dialect) -> type[Tokenizer]:
    """Return a dialect's tokenizer without COMMANDS: after CALL and its like it would take a string's `;` for an end."""
    return type("Tokenizer", (dialect.tokenizer_class,), {"COMMANDS": set()})
