"""Importances as bars, in a file. Text stays text in SVG, so that the fonts of the viewer are used, Chinese ones too."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import BadSetting, Unwritable

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 40
"""Bars, the largest ones."""
_INCH = 0.28
"""Of a bar."""


def draw(path: Path, table: pa.Table, title: str) -> None:
    """Draw the columns feature, importance and stddev; of a column for each feature the mean of its absolute values.

    Raises BadSetting without matplotlib, Unwritable.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise BadSetting("explain.plot needs the package matplotlib: pip install 'elasticdl[sql]'") from None
    rows = sorted(_bars(table), key=lambda bar: abs(bar[1]))[-_MOST:]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elasticdl"}):
        figure = Figure(figsize=(7, 1.2 + _INCH * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        names, lengths, spreads = zip(*rows, strict=True)
        axes.barh(range(len(rows)), lengths, xerr=spreads, color="#4878a8", ecolor="#404040")
        axes.set_yticks(range(len(rows)), names, parse_math=False)
        axes.set_title(title, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        try:
            with warnings.catch_warnings(
                action="ignore", category=UserWarning
            ):  # of characters that the font here lacks
                figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise Unwritable(f"the bars can't be drawn into {path}", error, "try again") from error


def _bars(table: pa.Table) -> list[tuple[str, float, float]]:
    import pyarrow.compute as pc

    if "importance" in table.column_names:
        columns = (table.column(name).to_pylist() for name in ("feature", "importance", "stddev"))
        return list(zip(*columns, strict=True))
    return [
        (name, pc.mean(pc.abs(column)).as_py(), 0.0)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
