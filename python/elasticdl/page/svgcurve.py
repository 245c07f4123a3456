"""A curve as an SVG picture that an HTML page can hold: a line, and the few numbers that are read off it. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 340, 90
"""Of a picture, in pixels."""
_TOP, _BOTTOM, _RIGHT = 18.0, 16.0, 72.0
"""Room around the line for its name, for steps and for values, in pixels."""
_TEXT = 'font-size="11" fill="currentColor"'


def curve(name: str, points: Sequence[tuple[int, float]]) -> str:
    """Return a curve as an `svg` element; empty if there are no two points to draw a line between.

    Args:
        name: what it is of, any text.
        points: (step, value) in the order of steps; what is no finite number is left out.
    """
    shown = [(step, value) for step, value in points if math.isfinite(value)]
    if len(shown) < 2 or shown[0][0] >= shown[-1][0]:
        return ""
    first, last = shown[0][0], shown[-1][0]
    lowest, highest = min(value for _, value in shown), max(value for _, value in shown)
    across, down = WIDTH - _RIGHT, HEIGHT - _TOP - _BOTTOM
    span = highest / 2 - lowest / 2  # halves: the difference of the largest numbers is none
    line = " ".join(
        f"{(step - first) / (last - first) * across:.1f},"
        f"{_TOP + (0.5 if span <= 0 else (highest / 2 - value / 2) / span) * down:.1f}"
        for step, value in shown
    )
    title = html.escape(f"{name} {shown[-1][1]:.4g}")
    texts = [
        _text(0, 11, title),
        _text(0, HEIGHT - 3, f"step {first:,}"),
        _text(across, HEIGHT - 3, f"{last:,}", "end"),
        _text(across + 4, _TOP + 4, f"{highest:.3g}"),
        *([_text(across + 4, HEIGHT - _BOTTOM + 4, f"{lowest:.3g}")] if span > 0 else []),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">'
        f'<polyline points="{line}" fill="none" stroke="#2a78d6" stroke-width="1.5"/>{"".join(texts)}</svg>'
    )


def _text(x: float, y: float, escaped: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {_TEXT}>{escaped}</text>'
