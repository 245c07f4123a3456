"""The small grammars inside settings: `k=v; k=v` and `MIN:MAX`.

Text in, values out, once, at the edge; nothing here knows which setting a text came from. Values are Python literals read by
`ast.literal_eval`, so that a command line can never run code. Errors are ValueErrors that show the offending piece.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """How many workers a job wants, and below how many it waits.

    Attributes:
        minimum: with fewer members the job waits; at least 1.
        maximum: how many are launched; at least `minimum`.
    """

    minimum: int
    maximum: int

    def __str__(self) -> str:
        return str(self.maximum) if self.minimum == 1 else f"{self.minimum}:{self.maximum}"


@dataclass(frozen=True, slots=True)
class BestMetric:
    """By which metric checkpoints are chosen.

    Attributes:
        metric: its name, as it is shown.
        more: more is better.
    """

    metric: str
    more: bool

    def __str__(self) -> str:
        return f"{self.metric}:max" if self.more else self.metric

    def is_better(self, value: float, than: float) -> bool:
        """Tell whether a value is better than another."""
        return value > than if self.more else value < than


def best_metric(text: str) -> BestMetric:
    """Read `METRIC` (less is better) or `METRIC:max`."""
    name, colon, direction = text.strip().partition(":")
    if not name or (colon and direction not in ("max", "min")):
        raise ValueError(f"{text!r} is neither METRIC nor METRIC:max")
    return BestMetric(name, direction == "max")


def worker_range(text: str) -> WorkerRange:
    """Read `N` (wants N, trains with any number) or `MIN:MAX` (waits below MIN)."""
    low, colon, high = text.strip().partition(":")
    numbers = [low, high] if colon else ["1", low]
    if not all(number.strip().isascii() and number.strip().isdigit() for number in numbers):
        raise ValueError(f"{text!r} is neither N nor MIN:MAX")
    minimum, maximum = (int(number) for number in numbers)
    if minimum < 1 or maximum < 1:
        raise ValueError(f"{text!r} asks for no worker at all; the least is 1")
    if minimum > maximum:
        raise ValueError(f"in {text!r} the minimum is larger than the maximum")
    return WorkerRange(minimum, maximum)


def parameters(text: str) -> dict[str, object]:
    """Read `k=v; k=v`; each value is a Python literal. A semicolon inside quotes or brackets belongs to its value."""
    result: dict[str, object] = {}
    for piece in _pieces(text):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise ValueError(f"{piece.strip()!r} is not of the form name=value")
        if name in result:
            raise ValueError(f"{name!r} is given twice")
        result[name] = literal(name, value)
    return result


def literal(name: str, text: str) -> object:
    """Read one Python literal."""
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        hint = (
            f"; text needs quotes: {name}='{text}'"
            if text.replace("_", "").replace("/", "").isalnum()
            else ""
        )
        raise ValueError(f"the value of {name!r}, {text!r}, is not a Python literal{hint}") from None
    return value


def parameters_text(values: Mapping[str, object]) -> str:
    """Write parameters so that `parameters` reads them back."""
    return "; ".join(f"{name}={value!r}" for name, value in values.items())


def _pieces(text: str) -> Iterator[str]:
    """Split at semicolons outside quotes and brackets; empty pieces are skipped."""
    start, quote, depth, escaped = 0, "", 0, False
    for at, character in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _PAIRS:
            depth += 1
        elif character in _PAIRS.values():
            depth -= 1
        elif character == ";" and depth <= 0:
            if text[start:at].strip():
                yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]
