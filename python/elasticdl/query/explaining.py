"""`TO EXPLAIN`: which columns a model's predictions depend on, by its loss when one of them is shuffled, or by gradients for each row.

It is computed here, on a sample: no data leaves this machine, and a job would take longer to start. What is worse without a column is the
main metric of one of our models; of a model of a zoo it is the loss, which all have, and its file runs in a process of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.job.progress import Progress
from elasticdl.query import attributes, bars, check, snapshot
from elasticdl.query.answer import Answer
from elasticdl.query.attributes import Wanted
from elasticdl.query.jobs import PASSWORDS, spec_of
from elasticdl.query.session import Session, placed
from elasticdl.query.source import Into
from elasticdl.query.statements import Explain
from elasticdl.query.using import (
    check_classes,
    check_exported,
    check_table,
    foreseen,
    plan_of,
    taken,
    use,
    write,
)
from elasticdl.spec.edge import check_zoo
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.spec.modelfile import check_model_file
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.importance import SHUFFLES, Importance, sized

if TYPE_CHECKING:
    from elasticdl.query.registry import Version
    from elasticdl.tabular.features import Plan

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
    is_own = version.json["model_zoo"] is None
    if method == GRADIENTS and not is_own:
        raise statement.model.place.error(
            f"{version.name} is of a model zoo, whose feed may make anything of a column, so gradients of columns are not known; leave "
            f"USING {GRADIENTS} out: permutation is for all models"
        )
    spec = None if is_own else _evaluation(statement, version, wanted, session)
    mode = Into(wanted.into)
    label = version.json["label"] if method == PERMUTATION else None
    with placed(statement):
        schema = session.source.schema(statement.select.text, session.params)
    kind = version.json.get("label_kind")
    check.use(statement, schema, version.json["columns"], label, session.source.dialect, kind)
    check_table(statement.table, mode, session)
    if session.dry_run:
        return Answer(statement.place.text, foreseen(statement.table, version), version)
    plan = None
    if is_own:
        with placed(statement):
            check_exported(version)
            plan = plan_of(version)
    with session.store.work() as work:
        taken_rows = taken(statement, session, version, work.directory, label)
        if plan is not None and label is not None:
            check_classes(statement, version, plan.label, taken_rows)
        size = _size(method, plan, version, min(taken_rows.rows, wanted.rows), "explain.rows" in wanted.plan)
        rows = _sampled(taken_rows, size.rows)
        note = size.note(taken_rows.rows)
        session.tell(f"  {note}")
        with placed(statement):
            if spec is not None:
                found = _of_loss(spec, rows, work.directory, list(version.json["columns"]), size.shuffles)
            else:
                assert plan is not None, "models of ours have one"
                log = work.directory / "tensorflow.log"
                found = _explained(method, version, plan, rows, size, log)
    if wanted.plot is not None:
        bars.draw(Path(wanted.plot), found, f"{version.name}: {method}")
    if statement.table is not None:
        write(statement.table, lambda: _batches(found), mode, version, session, name)
    return Answer(statement.place.text, found, version, notes=(note,))


@dataclass(frozen=True, slots=True)
class _Size:
    """How much is computed.

    Attributes:
        rows: that are explained.
        columns: that are.
        shuffles: of each; 0 where there are gradients.
    """

    rows: int
    columns: int
    shuffles: int

    def note(self, there: int) -> str:
        """Return what a person should know of it; `there`: rows of the SELECT."""
        of = f"{there:,} rows" if self.rows == there else f"a sample of {self.rows:,} of {there:,} rows"
        if not self.shuffles:
            return f"explained by {of}"
        fewer = ", and not five times, as there are so many" if self.shuffles < SHUFFLES else ""
        return f"explained by {of}: each of {self.columns:,} columns is shuffled {self.shuffles} times{fewer}"


def _size(method: str, plan: Plan | None, version: Version, rows: int, asked: bool) -> _Size:
    """Return how much is computed of at most so many rows; `asked`: a person wants as many."""
    columns = len(version.json["columns"] if plan is None else {one.column for one in plan.inputs})
    if method == GRADIENTS:
        return _Size(rows, columns, 0)
    rows, shuffles = sized(rows, columns, None if plan is None else plan.network.kind, asked=asked)
    return _Size(rows, columns, shuffles)


def _method(statement: Explain) -> str:
    if statement.method is None:
        return PERMUTATION
    name = statement.method.name.lower()
    if name not in METHODS:
        hint = "; trees are not here" if "tree" in name else nearest(name, METHODS)
        raise statement.method.place.error(
            f"there is no method {statement.method.name!r}; there are {' and '.join(METHODS)}{hint}"
        )
    return name


def _explained(method: str, version: Version, plan: Plan, rows: pa.Table, size: _Size, log: Path) -> pa.Table:
    """Return feature, importance and stddev, or with gradients a column for each feature; `log`: for what TensorFlow says of itself."""
    from elasticdl.keras.runtime import import_keras
    from elasticdl.tabular import importance

    import_keras(log)
    if method == GRADIENTS:
        with Progress("rows explained", size.rows) as progress:
            return importance.integrated_gradients(version.directory, plan, rows, progress=progress)
    with Progress("columns shuffled", size.columns) as progress:
        found = importance.permutation(
            version.directory, plan, rows, seed=_SEED, shuffles=size.shuffles, progress=progress
        )
    return _table(found)


def _evaluation(statement: Explain, version: Version, wanted: Wanted, session: Session) -> JobSpec:
    """Return the job that would evaluate a model of a zoo on this machine. Raises BadStatement for a zoo that is not there."""
    made = use(version) | {"validation_data": "/rows", "minibatch_size": version.json["minibatch_size"]}
    here = {name: given for name, given in session.flags.items() if name != "image_name"}
    with placed(statement):
        spec = spec_of(JobKind.EVALUATE, version.name, made, {}, wanted.settings, here)
        check_zoo(spec)
        check_model_file(spec)
    return spec


def _of_loss(
    spec: JobSpec, rows: pa.Table, directory: Path, columns: Sequence[str], shuffles: int
) -> pa.Table:
    """Return feature, importance and stddev of a model of a zoo; `directory`: for the rows that are explained."""
    from elasticdl.job.importance import permutation

    file = directory / "explained.parquet"
    pq.write_table(rows, file, row_group_size=max(1, rows.num_rows))
    found = permutation(
        replace(spec, validation_data=str(file)), columns, seed=_SEED, shuffles=shuffles, without=PASSWORDS
    )
    return _table(found)


def _table(found: Sequence[Importance]) -> pa.Table:
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
