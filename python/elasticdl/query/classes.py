"""Rows whose label is no class of a model. Metrics leave them out, so they are counted before a job runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import duckdb

from elasticdl.query.duckdb import SETTINGS
from elasticdl.spec.databases import quoted, text
from elasticdl.tabular.features import Label, LabelKind

_SHOWN = 3
"""Values that a message shows of those that a model does not know."""
_CLASSES_SHOWN = 5
_LONGEST = 40
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Rows with labels that a model does not know.

    Attributes:
        count: of them.
        rows: all that there are.
        values: some of their labels as people read them, the most frequent first.
    """

    count: int
    rows: int
    values: str


def unknown(directory: Path, rows: int, label: Label) -> Unknown:
    """Return how many of the rows of a snapshot's directory have a label that is no class; none have if a number is predicted."""
    if not label.classes:
        return Unknown(0, rows, "")
    files = ", ".join(text(str(file)) for file in sorted(directory.glob("*.parquet")))
    is_text = label.kind is LabelKind.TEXT
    classes = [str(one) if is_text else int(one) for one in label.classes]
    with closing(duckdb.connect(config=SETTINGS)) as database:
        found = database.execute(
            f"""
            WITH others AS (
                SELECT {quoted(label.column)} AS value, count(*) AS many FROM read_parquet([{files}])
                WHERE value NOT IN (SELECT unnest(CAST(? AS {"VARCHAR" if is_text else "HUGEINT"}[])))
                GROUP BY value
            )
            SELECT CAST(value AS VARCHAR), CAST(sum(many) OVER () AS BIGINT) FROM others ORDER BY many DESC, value LIMIT {_SHOWN + 1}
            """,
            [classes],
        ).fetchall()
    values = [_written(value, is_text) for value, _ in found]
    return Unknown(found[0][1] if found else 0, rows, _listed(values, _SHOWN))


def known(label: Label) -> str:
    """Return the classes of a label as people read them."""
    is_text = label.kind is LabelKind.TEXT
    classes = [_written(f"{one:g}" if isinstance(one, float) else str(one), is_text) for one in label.classes]
    return _listed(classes, _CLASSES_SHOWN)


def _written(value: str, is_text: bool) -> str:
    short = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    return repr(short) if is_text else short


def _listed(values: list[str], most: int) -> str:
    return ", ".join(values[:most]) + (", …" if len(values) > most else "")
