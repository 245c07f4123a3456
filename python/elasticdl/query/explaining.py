"""`TO EXPLAIN`: which columns a model's predictions depend on, by its loss when one of them is shuffled, or by gradients for each row.

It is computed in this process, on a sample: no data leaves it, and a job would take longer to start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.query import attributes, bars, check, snapshot
from elasticdl.query.answer import Answer
from elasticdl.query.session import Session, placed
from elasticdl.query.source import Into
from elasticdl.query.statements import Explain
from elasticdl.query.using import check_table, foreseen, taken, write
from elasticdl.spec.edge import nearest
from elasticdl.tabular import template
from elasticdl.tabular.features import Plan

if TYPE_CHECKING:
    from elasticdl.query.registry import Version

PERMUTATION, GRADIENTS = "permutation", "integrated_gradients"
METHODS = (PERMUTATION, GRADIENTS)
_SEED = 0


def explain(statement: Explain, session: Session, name: str) -> Answer:
    """Explain a model by the rows of a SELECT; `name` is that of this write and of no other.

    Raises BadStatement before anything is made, Unwritable later.
    """
    wanted = attributes.wanted(statement)
    method = _method(statement)
    version = session.find(statement.model)
    if version.json["model_zoo"] is not None:
        raise statement.model.place.error(
            f"{version.name} is of a model zoo, whose feed may make anything of a column, and runs in workers: a job for each shuffle of "
            "each column; TO EXPLAIN is for models of tables, such as dnn"
        )
    mode = Into(wanted.into)
    label = version.json["label"] if method == PERMUTATION else None
    with placed(statement):
        schema = session.source.schema(statement.select.text, session.params)
    check.use(statement, schema, version.json["columns"], label, session.source.dialect)
    check_table(statement.table, mode, session)
    if session.dry_run:
        return Answer(statement.place.text, foreseen(statement.table, version), version)
    with session.store.work() as work:
        rows = _sampled(taken(statement, session, work.directory, label), wanted.rows)
    with placed(statement):
        found = _explained(method, version, rows)
    if wanted.plot is not None:
        bars.draw(Path(wanted.plot), found, f"{version.name}: {method}")
    if statement.table is not None:
        write(statement.table, lambda: _batches(found), mode, version, session, name)
    return Answer(statement.place.text, found, version)


def _method(statement: Explain) -> str:
    if statement.method is None:
        return PERMUTATION
    name = statement.method.name.lower()
    if name not in METHODS:
        trees = "; trees are not here" if "tree" in name else ""
        raise statement.method.place.error(
            f"there is no method {statement.method.name!r}{trees or nearest(name, METHODS)}; there are {' and '.join(METHODS)}"
        )
    return name


def _explained(method: str, version: Version, rows: pa.Table) -> pa.Table:
    """Return feature, importance and stddev, or with gradients a column for each feature."""
    from elasticdl.tabular import importance

    plan = Plan.from_json((version.directory / template.PLAN).read_text(encoding="utf-8"))
    if method == GRADIENTS:
        return importance.integrated_gradients(version.directory, plan, rows)
    found = importance.permutation(version.directory, plan, rows, seed=_SEED)
    return pa.table(
        {
            "feature": pa.array([one.feature for one in found], pa.string()),
            "importance": pa.array([one.importance for one in found], pa.float64()),
            "stddev": pa.array([one.stddev for one in found], pa.float64()),
        }
    )


def _sampled(rows: snapshot.Snapshot, most: int) -> pa.Table:
    """Return at most so many rows, in their order; which ones is the same each time."""
    table = pq.read_table(rows.training)
    if table.num_rows <= most:
        return table
    return table.take(sorted(random.Random(_SEED).sample(range(table.num_rows), most)))


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches())
