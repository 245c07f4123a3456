"""How a job stands as a piece of HTML, for notebooks: what a terminal shows live, and small curves. Pure.

It has no script and loads nothing. Everything that it is given is shown as text, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from elasticdl.control.protocol.status import JobStatus
from elasticdl.job.display import status_line
from elasticdl.page.recording import LOSS, Recording
from elasticdl.page.svgcurve import curve

_MOST_CURVES = 4
_COLOURS = {"finished": "#2e7d32", "failed": "#c62828", "killed": "#c62828", "interrupted": "#b26a00"}
_COLOUR = "#2a78d6"
"""Of a state that is none of these."""


def card(status: JobStatus, recording: Recording, lines: Sequence[str] = ()) -> str:
    """Return a card about a job.

    Args:
        status: how it stands.
        recording: its curves and evaluations.
        lines: what has happened lately.
    """
    colour = _COLOURS.get(status.state, _COLOUR)
    reason = f" <span style='opacity:.7'>{escape(status.reason)}</span>" if status.reason else ""
    parts = [
        f"<div><b>{escape(status.job_name)}</b> <span style='color:{colour}'>{escape(status.state)}</span>{reason}</div>"
    ]
    if status.done is not None:
        share = 100 * min(1.0, max(0.0, status.done))
        parts.append(
            f"<div role='progressbar' aria-label='done' aria-valuenow='{share:.0f}' "
            "style='background:rgba(128,128,128,.25);height:6px;margin:4px 0'>"
            f"<div style='background:{colour};height:6px;width:{share:.1f}%'></div></div>"
        )
    parts.append(f"<div>{escape(status_line(status))}</div>")
    if status.workers:
        shown = (
            f"{one.name} {one.state}{f' ({one.waits_for})' if one.waits_for else ''}"
            for one in status.workers
        )
        parts.append(f"<div style='opacity:.7'>{escape(', '.join(shown))}</div>")
    if metrics := recording.last_metrics():
        found = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        parts.append(f"<div>last evaluation: {escape(found)}</div>")
    parts.append(_curves(recording))
    if lines:
        parts.append(_text(lines))
    return f"<div style='max-width:44em;font-size:90%'>{''.join(parts)}</div>"


def beginning(lines: Sequence[str]) -> str:
    """Return a card about a job that has said nothing yet: what is said of it, such as what its pods wait for."""
    return f"<div style='max-width:44em;font-size:90%'>{_text(lines)}</div>"


def problem(name: str, text: str) -> str:
    """Return a card about a job of which nothing can be said now; `text` says why."""
    return f"<div style='max-width:44em;font-size:90%'><b>{escape(name)}</b> {escape(text)}</div>"


def _text(lines: Sequence[str]) -> str:
    return f"<pre style='margin:4px 0;opacity:.7;white-space:pre-wrap'>{escape(chr(10).join(lines))}</pre>"


def _curves(recording: Recording) -> str:
    """Return the curve of the loss, and those of the first metrics."""
    found = recording.metric_points()
    names = sorted(found, key=lambda name: name != LOSS)[:_MOST_CURVES]
    return "".join(curve(name, [(point.step, point.value) for point in found[name]]) for name in names)
