"""`TO PREDICT` and `TO EVALUATE`: rows to files, an ordinary job with the trained model, and its result back.

Predictions are joined to their rows by place: a job writes one row for each record, in the order of the files. The table is written in one
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.errors import BadData, BadInput, BadSetting, BadStatement, JobFailed
from elasticdl.query import attributes, check, classes, jobs, results, snapshot
from elasticdl.query.answer import Answer
from elasticdl.query.jobs import Half
from elasticdl.query.session import Session, placed
from elasticdl.query.snapshot import Snapshot
from elasticdl.query.source import Into
from elasticdl.query.statements import Evaluate, Explain, Named, Predict
from elasticdl.query.training import one_row
from elasticdl.spec.jobspec import JobKind
from elasticdl.tabular import template
from elasticdl.tabular.features import PROBABILITIES, Label, Plan
from elasticdl.tabular.importance import MODEL

if TYPE_CHECKING:
    from elasticdl.query.registry import Rooms, Version

_PREDICTION = "prediction"
"""The column of a model with one output that has no name."""


def begin_predict(statement: Predict, session: Session, rooms: Rooms) -> Half | Answer:
    """Put the rows of a prediction into files; of a dry run return what would be done.

    Raises BadStatement before anything is made, Unwritable later.
    """
    wanted = attributes.wanted(statement)
    version = session.find(statement.model)
    with placed(statement):
        schema = session.source.schema(statement.select.text, session.params)
    check.use(statement, schema, version.json["columns"], None, session.source.dialect)
    check_table(statement.table, Into(wanted.into), session)
    if wanted.extra_outputs and version.json["model_zoo"] is None:
        with placed(statement):
            label = plan_of(version).label
        made_of = [label.column, *([PROBABILITIES] if label.classes else [])]
        _outputs(made_of, statement, version, wanted.extra_outputs)
    if session.dry_run:
        return Answer(statement.place.text, foreseen(statement.table, version), version)
    work = rooms.work()
    found = taken(statement, session, version, work.directory)
    output = str(work.directory / "predictions")
    made = use(version) | {
        "prediction_data": str(found.training),
        "output": output,
        "output_format": "parquet",
    }
    state = {
        "work": str(work.directory),
        "model": str(version),
        "rows": found.to_json(),
        "output": output,
    }
    derived, reasons = _sized(version, found.rows)
    return Half(JobKind.PREDICT, version.name, made, derived, wanted.settings, state, reasons=reasons)


def end_predict(
    statement: Predict, session: Session, half: Half, summary: Mapping[str, Any], name: str
) -> Answer:
    """Join predictions to their rows, and write or return them; `name` is that of this write and of no other.

    Raises BadStatement, JobFailed, Unwritable.
    """
    wanted = attributes.wanted(statement)
    version = session.store.find(half.state["model"])
    found = Snapshot.from_json(half.state["rows"])

    def joined() -> Iterator[pa.RecordBatch]:
        return _joined(found, Path(half.state["output"]), statement, version, wanted.extra_outputs)

    if statement.table is None:
        batches = joined()
        first = next(batches)
        rows = pa.Table.from_batches(chain([first], batches), first.schema)
        return Answer(statement.place.text, rows, version, summary)
    write(statement.table, joined, Into(wanted.into), version, session, name)
    facts = {
        "table": statement.table.name,
        "rows": found.rows,
        "model": version.name,
        "version": version.version,
    }
    return Answer(statement.place.text, one_row(facts), version, summary)


def begin_evaluate(statement: Evaluate, session: Session, rooms: Rooms) -> Half | Answer:
    """Put the rows of an evaluation into files. Raises as `begin_predict`."""
    wanted = attributes.wanted(statement)
    version = session.find(statement.model)
    label = version.json["label"]
    if statement.label is not None and label is not None and statement.label.name != label:
        raise statement.label.place.error(
            f"{version.name} was trained with the label {label!r}; select that column under this name, with AS"
        )
    with placed(statement):
        schema = session.source.schema(statement.select.text, session.params)
    kind = version.json.get("label_kind")
    check.use(statement, schema, version.json["columns"], label, session.source.dialect, kind)
    check_table(statement.table, Into(wanted.into), session)
    if session.dry_run:
        return Answer(statement.place.text, foreseen(statement.table, version), version)
    work = rooms.work()
    found = taken(statement, session, version, work.directory, label)
    if version.json["model_zoo"] is None:
        with placed(statement):
            known = plan_of(version).label
        check_classes(statement, version, known, found)
    made = use(version) | {"validation_data": str(found.training)}
    state = {"work": str(work.directory), "model": str(version)}
    derived, reasons = _sized(version, found.rows)
    return Half(JobKind.EVALUATE, version.name, made, derived, wanted.settings, state, reasons=reasons)


def end_evaluate(
    statement: Evaluate, session: Session, half: Half, summary: Mapping[str, Any], name: str
) -> Answer:
    """Return what an evaluation found, written as well if a table is named. Raises as `end_predict`."""
    wanted = attributes.wanted(statement)
    version = session.store.find(half.state["model"])
    values = {
        name.removeprefix("val_"): float(value)
        for name, value in (summary.get("metrics") or {}).items()
        if isinstance(value, int | float)
    }
    if wanted.metrics:
        values = _chosen(values, wanted.metrics, statement)
    rows = pa.table({"metric": list(values), "value": pa.array(list(values.values()), pa.float64())})
    if statement.table is not None:
        write(statement.table, lambda: iter(rows.to_batches()), Into(wanted.into), version, session, name)
    return Answer(statement.place.text, rows, version, summary)


def check_table(table: Named | None, mode: Into, session: Session) -> None:
    """Check before any work that a result can go to a table. Raises BadStatement at its name."""
    if table is None:
        return
    try:
        session.source.check(table.name, mode)
    except BadInput as error:
        raise table.place.error(str(error)) from None


def write(
    table: Named,
    rows: Callable[[], Iterator[pa.RecordBatch]],
    mode: Into,
    version: Version,
    session: Session,
    name: str,
) -> None:
    """Write a result into a table in one transaction, unless the write of this name has been done.

    Raises BadStatement at the table's name, Unwritable.
    """
    try:
        results.once(session.source, table.name, rows, mode, f"{version} {name}")
    except BadStatement:
        raise
    except BadInput as error:
        raise table.place.error(str(error)) from None


def taken(
    statement: Predict | Evaluate | Explain,
    session: Session,
    version: Version,
    directory: Path,
    label: str | None = None,
) -> Snapshot:
    """Return the rows of a statement's SELECT as files below a directory, in their order. Raises BadStatement, Unwritable."""
    with placed(statement):
        return snapshot.take(
            session.source,
            statement.select.text,
            session.params,
            directory=directory / "rows",
            seed=0,
            label=label,
            training=False,
            numbers=check.numbers(version.json["columns"]),
        )


def plan_of(version: Version) -> Plan:
    """Return the plan of a model of ours. Raises BadSetting."""
    file = version.directory / template.PLAN
    try:
        return Plan.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadSetting(
            f"the model {version} can't be used: {file}: {error!r}; DROP MODEL {version} removes it"
        ) from error


def check_classes(statement: Evaluate | Explain, version: Version, label: Label, rows: Snapshot) -> None:
    """Check that the model knows the labels of all rows: metrics would be of the others alone. Raises BadStatement."""
    with placed(statement):
        found = classes.unknown(rows.training, rows.rows, label)
        if not found.count:
            return
        what = (
            f"{found.count:,} of {found.rows:,} rows have a value of {label.column} that {version.name} does not know: {found.values}; "
            f"it knows {classes.known(label)}; leave those rows out in the SELECT, or train a model that has seen such rows"
        )
        named = statement.label if isinstance(statement, Evaluate) else None
        raise BadData(what) if named is None else named.place.error(what)


def check_exported(version: Version) -> None:
    """Check that a model of ours has the file that Keras loads. Raises BadSetting."""
    file = version.directory / MODEL
    if not file.is_file():
        raise BadSetting(
            f"the model {version} can't be used: there is no {file}; DROP MODEL {version} removes it"
        )


def use(version: Version) -> dict[str, object]:
    """Return the settings that say which model."""
    zoo = version.json["model_zoo"]
    made: dict[str, object] = {
        "model_zoo": str(version.directory) if zoo is None else zoo,
        "model_def": version.json["model_def"],
        "trained_model": str(version.directory / version.json["file"]),
    }
    if version.json["model_params"]:
        made["model_params"] = version.json["model_params"]
    return made


def _sized(version: Version, rows: int) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Return settings that follow from the model and its rows, and the reasons of those that a person should know."""
    workers, why = jobs.workers(rows)
    return {"minibatch_size": version.json["minibatch_size"], "num_workers": workers}, {"num_workers": why}


def foreseen(table: Named | None, version: Version) -> pa.Table:
    """Return what a statement would use and write."""
    return one_row(
        {"table": table.name if table is not None else "", "model": version.name, "version": version.version}
    )


def _chosen(values: Mapping[str, float], names: tuple[str, ...], statement: Evaluate) -> dict[str, float]:
    """Return the metrics that are asked for. Raises BadStatement for one that the model does not have."""
    for name in names:
        if name not in values:
            raise attributes.place_of(statement.attributes, "validation.metrics").error(
                f"the model has no metric {name!r}; it has {', '.join(values)}, as validation.metrics said when it was trained"
            )
    return {name: values[name] for name in names}


def _joined(
    rows: Snapshot, output: Path, statement: Predict, version: Version, extra: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows with their predictions: both are in the order of the rows. Raises JobFailed if one has more."""
    files = sorted(output.glob("*.parquet"))
    if not files:
        raise JobFailed(
            f"there are no predictions in {output}, which has been removed; run the statement again"
        )
    predicted = _Predicted(files)
    named = _outputs(predicted.names, statement, version, extra)
    replaced = {name.lower() for name in named}  # most databases don't tell capitals apart
    count = 0
    for batch in rows.selected():
        columns = {
            name: column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name.lower() not in replaced
        }
        found = predicted.take(batch.num_rows)
        columns |= {name: found.column(output).combine_chunks() for name, output in named.items()}
        count += batch.num_rows
        yield pa.RecordBatch.from_arrays([_flat(column) for column in columns.values()], names=list(columns))
    if left := predicted.left():
        raise JobFailed(
            f"there are {count:,} rows, and {left:,} predictions more than that; nothing was written"
        )


def _outputs(
    names: list[str], statement: Predict, version: Version, extra: tuple[str, ...]
) -> dict[str, str]:
    """Return which output of the model becomes which column. Raises BadStatement for outputs that it does not have."""
    label = version.json["label"]
    main = next((one for one in (label, _PREDICTION) if one in names), names[0])
    found = {statement.column.name: main}
    for name in extra:
        if name not in names:
            raise attributes.place_of(statement.attributes, "predict.extra_outputs").error(
                f"the model has no output {name!r}; it has {', '.join(names)}"
            )
        if name != main and name.lower() == statement.column.name.lower():
            raise statement.column.place.error(
                f"the prediction and predict.extra_outputs would both be a column {name!r}; give the prediction another name"
            )
        found[name] = name
    return found


class _Predicted:
    """The predictions of a job's files, taken in order."""

    def __init__(self, files: list[Path]) -> None:
        self._schema = pq.read_schema(files[0])
        self.names = [name for name in self._schema.names if name not in check.OF_RECORDS]
        self._batches = chain.from_iterable(
            pq.ParquetFile(file).iter_batches(columns=self.names) for file in files
        )
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> pa.Table:
        """Return the next rows. Raises JobFailed if there are fewer."""
        parts = []
        missing = count
        while missing:
            batch = (
                self._rest if self._rest is not None and self._rest.num_rows else next(self._batches, None)
            )
            if batch is None:
                raise JobFailed(f"{missing:,} rows have no prediction; nothing was written")
            parts.append(batch.slice(0, missing))
            self._rest = batch.slice(parts[-1].num_rows)
            missing -= parts[-1].num_rows
        empty = pa.schema([self._schema.field(name) for name in self.names])
        return pa.Table.from_batches(parts, parts[0].schema if parts else empty)

    def left(self) -> int:
        """Return how many have not been taken."""
        rest = self._rest.num_rows if self._rest is not None else 0
        return int(rest + sum(batch.num_rows for batch in self._batches))


def _flat(column: Any) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
