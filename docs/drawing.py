"""Drawings of the documentation as SVG, made from text: the rooms of the code, who sends what to whom, and figures of benchmarks.

Sizes are in pixels; text is measured by the count of its characters, which is enough for a fixed-width font.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.recorded import Bar

_CHARACTER = 7.3
"""Width of a character of the font below."""
_LINE = 17
_PAD = 10
_GAP = 12
_STYLE = """\
text { font: 12px ui-monospace, monospace; fill: #1f2328 } .head { font-weight: bold } .doc { fill: #59636e }
rect { fill: #f6f8fa; stroke: #818b98; rx: 4 } rect.inner { fill: #ffffff; stroke: #d1d9e0 }
rect.aim { fill: #4493f8 } rect.must { fill: #9ec1f0 } rect.short { fill: #e5534b } line.aim { stroke: #1f2328; stroke-width: 2 }
line { stroke: #818b98 } line.life { stroke-dasharray: 3 4; stroke: #d1d9e0 } marker path { fill: #818b98 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .doc { fill: #9198a1 } rect { fill: #151b23; stroke: #656c76 }
rect.inner { fill: #0d1117; stroke: #3d444d } line.life { stroke: #3d444d }
rect.aim { fill: #1f6feb } rect.must { fill: #385f94 } rect.short { fill: #b0372f } line.aim { stroke: #f0f6fc } }"""


@dataclass(frozen=True, slots=True)
class Room:
    """A package.

    Attributes:
        name: of the package.
        what: its one sentence.
        inner: the packages inside, from above to below; those that must not import each other share a row.
    """

    name: str
    what: str
    inner: Sequence[Sequence[Room]] = ()


def rooms(layers: Sequence[Sequence[Room]], width: int = 940) -> str:
    """Return a drawing of layers, the upper ones above; rooms beside each other must not import each other."""
    parts: list[str] = []
    top = _PAD
    for layer in layers:
        each = (width - 2 * _PAD - (len(layer) - 1) * _GAP) / len(layer)
        drawn = [_room(room, _PAD + n * (each + _GAP), top, each, "") for n, room in enumerate(layer)]
        height = max(height for _, height in drawn)
        for n, (inside, _) in enumerate(drawn):
            parts.append(_box(_PAD + n * (each + _GAP), top, each, height, ""))
            parts += inside
        top += height + _GAP
    return _svg(width, top, parts)


def _room(room: Room, left: float, top: float, width: float, kind: str) -> tuple[list[str], float]:
    """Return what a room's box contains, and its height."""
    parts = [_text(left + _PAD, top + _LINE + 2, room.name, "head")]
    below = top + _LINE + 8
    for line in _wrapped(room.what, width - 2 * _PAD):
        below += _LINE
        parts.append(_text(left + _PAD, below - 4, line, "doc"))
    for row in room.inner:
        below += _PAD
        each = (width - 2 * _PAD - (len(row) - 1) * _GAP) / len(row)
        drawn = [
            _room(one, left + _PAD + n * (each + _GAP), below, each, "inner") for n, one in enumerate(row)
        ]
        height = max(height for _, height in drawn)
        for n, (inside, _) in enumerate(drawn):
            parts.append(_box(left + _PAD + n * (each + _GAP), below, each, height, "inner"))
            parts += inside
        below += height
    return parts, below + _PAD - top


def sequence(actors: Sequence[str], messages: Sequence[tuple[str, str, str]], width: int = 940) -> str:
    """Return a drawing of messages between actors, in order; one from an actor to itself is work that it does."""
    each = width / len(actors)
    middle = {actor: (n + 0.5) * each for n, actor in enumerate(actors)}
    parts: list[str] = []
    top = _PAD
    for actor in actors:
        parts.append(_box(middle[actor] - each / 2 + _GAP / 2, top, each - _GAP, _LINE + _PAD, ""))
        parts.append(_text(middle[actor], top + _LINE, actor, "head", "middle"))
    start = top = top + _LINE + 2 * _PAD
    for number, (sender, receiver, what) in enumerate(messages, 1):
        said = f"{number}. {what}"
        if sender == receiver:
            lines = _wrapped(said, each - 2 * _GAP)
            height = len(lines) * _LINE + 6
            parts.append(_box(middle[sender] - each / 2 + _GAP / 2, top, each - _GAP, height, "inner"))
            for n, line in enumerate(lines):
                parts.append(_text(middle[sender], top + (n + 1) * _LINE - 2, line, "", "middle"))
            top += height + _PAD
            continue
        ends = middle[sender], middle[receiver]
        for line in _wrapped(said, max(abs(ends[0] - ends[1]) - _GAP, each)):
            top += _LINE
            parts.append(_text(sum(ends) / 2, top - 4, line, "", "middle"))
        parts.append(
            f'<line x1="{ends[0]:.0f}" y1="{top:.0f}" x2="{ends[1]:.0f}" y2="{top:.0f}" marker-end="url(#tip)"/>'
        )
        top += _PAD + 4
    lives = [
        f'<line class="life" x1="{x:.0f}" y1="{start:.0f}" x2="{x:.0f}" y2="{top:.0f}"/>'
        for x in middle.values()
    ]
    return _svg(width, top + _PAD, [*lives, *parts])


def bars(groups: Sequence[tuple[str, Sequence[Bar]]], width: int = 940) -> str:
    """Return a drawing of figures of benchmarks: how many times better than it must be each is, on a logarithmic scale."""
    label, low, high = 470.0, 1 / 8, 64.0
    start, end = label + _GAP, width - 90.0

    def at(times: float) -> float:
        share = math.log(min(max(times, low), high) / low) / math.log(high / low)
        return start + share * (end - start)

    parts: list[str] = []
    top = _PAD + _LINE
    parts.append(_text(label, top, "times better than it must be:", "doc", "end"))
    marks = (0.25, 1, 4, 16)
    parts += [_text(at(mark), top, f"{mark:g}", "doc", "middle") for mark in marks]
    first = top = top + _PAD
    for name, group in groups:
        top += _LINE
        parts.append(_text(_PAD, top, name, "head"))
        for bar in group:
            lines = _wrapped(bar.what, label - 2 * _PAD)
            for n, line in enumerate(lines):
                parts.append(_text(label, top + (n + 1) * _LINE, line, "", "end"))
            middle = top + len(lines) * _LINE / 2 + 4
            left, right = sorted((at(1), at(bar.times)))
            parts.append(_box(left, middle - 5, max(right - left, 1), 10, bar.verdict))
            parts.append(_line(at(bar.aim), middle - 7, middle + 7, "aim"))
            parts.append(_text(end + _PAD, middle + 4, bar.figure, "doc"))
            top += len(lines) * _LINE + 4
        top += 4
    parts = [_line(at(mark), first, top, "" if mark == 1 else "life") for mark in marks] + parts
    top += _LINE
    parts.append(
        _text(
            start,
            top,
            "blue: the aim is reached, pale: what must be; red: short; the stroke is the aim",
            "doc",
            "middle",
        )
    )
    return _svg(width, top + _PAD, parts)


def layers_of(contract: Sequence[str], rooms_by_name: Mapping[str, Room]) -> list[list[Room]]:
    """Return the rows of a contract of import-linter: names between bars are independent of each other."""
    return [[rooms_by_name[name.strip()] for name in layer.split("|")] for layer in contract]


def _wrapped(text: str, width: float) -> list[str]:
    most = max(8, int(width / _CHARACTER))
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= most:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _box(left: float, top: float, width: float, height: float, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<rect{named} x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}"/>'


def _line(x: float, top: float, end: float, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<line{named} x1="{x:.0f}" y1="{top:.0f}" x2="{x:.0f}" y2="{end:.0f}"/>'


def _text(left: float, base: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{named}{where} x="{left:.0f}" y="{base:.0f}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">\n'
        f"<style>{_STYLE}</style>\n{tip}\n{body}\n</svg>\n"
    )
