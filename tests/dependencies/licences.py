"""Licences as SPDX expressions, and which of them rust/deny.toml allows: pure, with the spellings that Python's packages use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

_TOKEN = re.compile(r"\(|\)|[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.+-]+)?")
SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "cc0": "CC0-1.0",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""What packages wrote before there were expressions in their metadata (PEP 639), in lower case."""


def is_allowed(expression: str, allowed: Sequence[str]) -> bool:
    """Tell whether an SPDX expression can be met by the licences that are allowed. Raises ValueError if it is none."""
    # Crates once separated alternatives by a slash.
    tokens = _tokens(expression.replace("/", " OR "))
    fits = _any(tokens, allowed)
    if tokens:
        raise ValueError(f"{expression!r} is no licence expression: {tokens[0]!r} is too much")
    return fits


def of_metadata(expression: str, text: str, classifiers: Sequence[str]) -> str:
    """Return the SPDX expression of a Python package, empty if its metadata name none.

    Args:
        expression: its `License-Expression`.
        text: its `License`, where some have the whole text.
        classifiers: the last words of its `License ::` classifiers.
    """
    if expression:
        return expression
    if text == "UNKNOWN":  # as setuptools once wrote for nothing
        text = ""
    known = [SPELLINGS.get(one.strip().lower(), "") for one in (text, *classifiers)]
    if re.fullmatch(r"[A-Za-z0-9.+-]+", text) and not known[0]:
        return text
    return next(filter(None, known), "")


def _tokens(expression: str) -> list[str]:
    left = _TOKEN.sub("", expression).strip()
    if left:
        raise ValueError(f"{expression!r} is no licence expression: {left!r} is unknown")
    return _TOKEN.findall(expression)


def _terms(tokens: list[str], word: str, term: Callable[[], bool]) -> Iterator[bool]:
    yield term()
    while tokens[:1] == [word]:
        del tokens[0]
        yield term()


def _any(tokens: list[str], allowed: Sequence[str]) -> bool:
    return any(list(_terms(tokens, "OR", lambda: _all(tokens, allowed))))


def _all(tokens: list[str], allowed: Sequence[str]) -> bool:
    return all(list(_terms(tokens, "AND", lambda: _one(tokens, allowed))))


def _one(tokens: list[str], allowed: Sequence[str]) -> bool:
    if not tokens or tokens[0] in (")", "OR", "AND"):
        raise ValueError("a licence expression ends too early")
    token = tokens.pop(0)
    if token != "(":
        return token in allowed
    fits = _any(tokens, allowed)
    if tokens[:1] != [")"]:
        raise ValueError("a licence expression lacks a bracket")
    del tokens[0]
    return fits
