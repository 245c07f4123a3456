"""`TO TRAIN`: rows to files, files to statistics and a plan, the plan to a model file, and an ordinary job on all that.

A model of a zoo has its own `feed`, so of it only the rows are taken. Rows are counted at every stage: those of the cursor, of the files,
and those that the workers' own records say were trained. A difference fails, and no model is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.audit import audit
from elasticdl.errors import BadData, BadInput, JobFailed
from elasticdl.job.progress import Progress
from elasticdl.query import attributes, check, classes, snapshot
from elasticdl.query.answer import Answer
from elasticdl.query.attributes import Wanted
from elasticdl.query.jobs import Half, spec_of
from elasticdl.query.registry import COMMIT
from elasticdl.query.session import Session, placed
from elasticdl.query.snapshot import Snapshot
from elasticdl.query.statements import Train
from elasticdl.spec.edge import Given, check_zoo
from elasticdl.spec.framework import framework_of
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.spec.modelfile import check_model_file
from elasticdl.tabular import plan as plans
from elasticdl.tabular import statistics, template
from elasticdl.tabular.kinds import kind_of
from elasticdl.tabular.network import KINDS, target_of

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.query.registry import Entry, Rooms, Version
    from elasticdl.tabular.features import Label, Plan

FORMAT = 1
"""Of `model.json`."""
AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is trained on.

    Attributes:
        training: the snapshot of the SELECT.
        validation: a directory with rows to validate on, if there are any.
        validation_rows: how many.
    """

    training: Snapshot
    validation: Path | None
    validation_rows: int


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is kept of the settings of a model's job.

    Attributes:
        file: of the model, below its version.
        model_zoo: of a model of a zoo, the whole path.
        model_def: the symbol.
        model_params: its arguments.
        minibatch_size: of the job.
    """

    file: str
    model_zoo: str
    model_def: str
    model_params: Mapping[str, Any]
    minibatch_size: int

    @classmethod
    def of(cls, spec: JobSpec) -> JobFacts:
        """Return those of a job."""
        return cls(
            Path(spec.output).name,
            str(Path(spec.model_zoo).resolve()),
            spec.model_def,
            dict(spec.model_params),
            spec.minibatch_size,
        )

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON has them."""
        return asdict(self)


def begin(statement: Train, session: Session, rooms: Rooms) -> Half | Answer:
    """Put the rows of a training into files, with a plan for them; of a dry run return what would be done.

    Raises BadStatement before anything is made, JobFailed, Unwritable later.
    """
    wanted = attributes.wanted(statement)
    own = is_own(statement, wanted)
    if own and statement.label is None:
        raise statement.place.script.error(
            statement.model.place.start,
            "LABEL is missing before INTO: write LABEL and the column that is to be predicted",
        )
    with placed(statement):
        check.train(statement, session.source.schema(statement.select.text, session.params), own=own)
        if not own:
            _check_file(statement, wanted, session)
    work = rooms.work()
    with placed(statement):
        rows = _rows(statement, wanted, session, work.directory)
    plan = _plan(statement, wanted, rows) if own else None
    notes = (
        (*map(str, plan.reasons), *_unknown_classes(statement, rows, plan.label)) if plan is not None else ()
    )
    for note in notes:
        session.tell(f"  {note}")
    if session.dry_run:
        return Answer(statement.place.text, _foreseen(statement, rows, plan), notes=notes)
    entry = rooms.entry(statement.model.name)
    made: dict[str, object] = {
        "training_data": str(rows.training.training),
        "audit": str(entry.directory / AUDIT),
    }
    if rows.validation is not None:
        made["validation_data"] = str(rows.validation)
    derived: Mapping[str, object] = {}
    if plan is not None:
        template.write(entry.directory, plan)
        made |= {"model_zoo": str(entry.directory), "model_def": template.MODEL_DEF}
        derived = plan.settings
    else:
        assert statement.target is not None, "our own model has no other name"
        made |= {"model_def": statement.target.name, "model_params": dict(wanted.model)}
    state = {
        "work": str(work.directory),
        "version": entry.version,
        "rows": rows.training.rows,
        "training_rows": rows.training.training_rows,
        "validation_rows": rows.validation_rows,
        "columns": _columns(rows.training.schema, statement, plan),
        "label_kind": _label_kind(rows.training.schema, statement),
        "inputs": {one.column: one.name for one in plan.inputs} if plan is not None else {},
    }
    return Half(JobKind.TRAIN, statement.model.name, made, derived, wanted.settings, state, notes)


def with_output(spec: JobSpec) -> JobSpec:
    """Return the job of a training with the place for its result, beside the audit. Raises BadSetting, BadModel."""
    file = f"model{framework_of(spec).formats[0].suffix}"
    return replace(spec, output=str(Path(spec.audit).parent / file))


def end(
    statement: Train, session: Session, entry: Entry, half: Half, job: JobFacts, summary: Mapping[str, Any]
) -> Answer:
    """Check what a job has trained on, and keep its model; one that has been kept already stays. Raises JobFailed, Unwritable."""
    if (entry.directory / COMMIT).exists():
        version = session.store.find(f"{statement.model.name}@{entry.version}")
    else:
        version = _kept(statement, session, entry, half.state, job, summary)
    kept = version.json
    facts = {
        "model": version.name,
        "version": version.version,
        "rows": kept["rows"]["training"],
        "validation_rows": kept["rows"]["validation"],
        "epochs": len(kept["rows"]["audit"]),
        **kept["metrics"],
    }
    return Answer(statement.place.text, one_row(facts), version, summary, half.notes)


def _kept(
    statement: Train,
    session: Session,
    entry: Entry,
    state: Mapping[str, Any],
    job: JobFacts,
    summary: Mapping[str, Any],
) -> Version:
    epochs = _audited(entry.directory / AUDIT, state["training_rows"])
    own = is_own(statement, attributes.wanted(statement))
    return entry.commit(
        {
            "format": FORMAT,
            "model": statement.model.name,
            "version": entry.version,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "statement": statement.place.text,
            "dialect": session.source.dialect,
            "database": session.source.name,
            "file": job.file,
            "target": statement.target.name if statement.target is not None else "dnn",
            "label": statement.label.name if statement.label is not None else None,
            "label_kind": state["label_kind"],
            "columns": state["columns"],
            "inputs": state["inputs"],
            "model_zoo": None if own else job.model_zoo,
            "model_def": job.model_def,
            "model_params": dict(job.model_params),
            "minibatch_size": job.minibatch_size,
            "rows": {
                "select": state["rows"],
                "training": state["training_rows"],
                "validation": state["validation_rows"],
                "audit": epochs,
            },
            "metrics": _metrics(summary),
        }
    )


def is_own(statement: Train, wanted: Wanted) -> bool:
    """Tell whether the model is one of ours; else it is of a model zoo. Raises BadStatement for a target that is neither."""
    target = statement.target
    if target is None or target_of(target.name) is not None:
        return True
    if "." not in target.name:
        from elasticdl.spec.nearest import nearest

        raise target.place.error(
            f"there is no model {target.name!r}; there are {', '.join(KINDS)}, with _classifier or _regressor, and functions of a model "
            f"zoo as file.function{nearest(target.name.lower(), KINDS)}"
        )
    if statement.columns:
        raise target.place.error(
            f"{target.name} is of a model zoo, which has a feed of its own for the rows; leave COLUMN out"
        )
    if wanted.metrics:
        raise attributes.place_of(statement.attributes, "validation.metrics").error(
            f"{target.name} is of a model zoo, whose eval_metrics_fn says which metrics it has; leave validation.metrics out, and choose "
            "those that are shown in TO EVALUATE"
        )
    for name in wanted.plan:
        if name.startswith("optimizer."):
            raise attributes.place_of(statement.attributes, name).error(
                f"{target.name} is of a model zoo, which has an optimizer of its own; leave {name} out, or pass it as model.NAME to "
                "the function"
            )
    return False


def _check_file(statement: Train, wanted: Wanted, session: Session) -> None:
    """Check the file of a zoo's model before rows are read for it, if it is here. Raises BadModel, BadSetting."""
    if session.in_pod:
        return
    assert statement.target is not None, "our own model has no other name"
    made = {"model_def": statement.target.name, "model_params": dict(wanted.model), "training_data": "/rows"}
    spec = spec_of(JobKind.TRAIN, statement.model.name, made, {}, wanted.settings, session.flags)
    if not spec.on_kubernetes:  # an image may have the zoo; submitting the job checks what is here
        check_zoo(spec)
        check_model_file(spec)


def _rows(statement: Train, wanted: Wanted, session: Session, directory: Path) -> _Rows:
    seed = _seed(session.flags, wanted)
    label = statement.label.name if statement.label is not None else None
    apart = wanted.validation_select
    taken = snapshot.take(
        session.source,
        statement.select.text,
        session.params,
        directory=directory / "rows",
        seed=seed,
        label=label,
        fraction=0.0 if apart is not None else wanted.fraction,
    )
    if apart is None:
        return _Rows(taken, taken.validation, taken.validation_rows)
    place = attributes.place_of(statement.attributes, "validation.select")
    try:
        found = session.source.schema(apart)
        if missing := [name for name in taken.schema.names if name not in found.names]:
            raise place.error(
                f"validation.select gives no column {missing[0]!r}, which the rows that are trained on have"
            )
        if label is not None:
            check.same_kind(label, found.field(label).type, taken.schema.field(label).type, place)
        validation = snapshot.take(
            session.source,
            apart,
            directory=directory / "validation",
            seed=seed,
            label=label,
            fraction=0.0,
            numbers=check.numbers({one.name: kind_of(one.type) for one in taken.schema}),
        )
    except BadInput as error:
        raise (
            error
            if str(error).startswith(place.script.filename)
            else place.error(f"validation.select: {error}")
        ) from None
    return _Rows(taken, validation.training, validation.rows)


def _seed(flags: Mapping[str, Given], wanted: Wanted) -> int:
    given = flags["seed"].value if "seed" in flags else wanted.settings.get("seed", 0)
    return int(str(given))


def _plan(statement: Train, wanted: Wanted, rows: _Rows) -> Plan:
    assert statement.label is not None, "refused before"
    with Progress("columns counted", len(rows.training.schema)) as progress:
        counted = statistics.of(sorted(rows.training.training.glob("*.parquet")), progress=progress)
    with placed(statement):
        plan = plans.derive(
            rows.training.schema,
            counted,
            statement.label.name,
            columns=statement.columns,
            target=statement.target.name if statement.target is not None else None,
            attributes=wanted.plan,
            rows=rows.training.training_rows,
        )
    return replace(plan, validates=plan.validates and rows.validation is not None)


def _unknown_classes(statement: Train, rows: _Rows, label: Label) -> tuple[str, ...]:
    """Return what a person should know of validation rows with a class that no row to train on has.

    Raises BadStatement if all validation rows have such a class: no metric could be computed.
    """
    if rows.validation is None:
        return ()
    found = classes.unknown(rows.validation, rows.validation_rows, label)
    if not found.count:
        return ()
    if found.count < found.rows:
        return (
            f"{found.count:,} of {found.rows:,} validation rows have a value of {label.column} that no row to train on has: "
            f"{found.values}; metrics leave them out, and the loss counts each of them as 0",
        )
    trained = rows.training.training_rows
    with placed(statement):
        if rows.validation == rows.training.validation:
            if 2 * len(label.classes) > trained:
                raise BadData(
                    f"the label {label.column!r} is different in nearly each row: {trained:,} rows to train on have {len(label.classes):,} "
                    f"values, and no validation row ({found.rows:,} in all) has one of these, but {found.values}, so there is nothing to "
                    "learn; group the values in the SELECT, or choose another label"
                )
            raise BadData(
                f"no validation row ({found.rows:,} in all) has a value of the label {label.column!r} that the {trained:,} rows to train "
                f"on have, but {found.values}; set more rows apart with validation.fraction, or choose them with validation.select"
            )
        raise BadData(
            f"validation.select: no row ({found.rows:,} in all) has a value of {label.column} that the rows to train on have, but "
            f"{found.values}; those have {classes.known(label)}"
        )


def _audited(directory: Path, expected: int) -> list[int]:
    """Return the records of each epoch, by the workers' own records. Raises JobFailed if they are not the rows of the SELECT."""
    report = audit(directory)
    counted = [epoch.counted for epoch in report.epochs]
    if any(epoch.expected != expected for epoch in report.epochs) or any(
        one != expected for one in counted[:-1]
    ):
        raise JobFailed(
            f"the SELECT gave {expected:,} rows to train on, and the workers' records have {', '.join(f'{one:,}' for one in counted)} in "
            f"the epochs; the audit is {directory}"
        )
    return counted


def _columns(schema: pa.Schema, statement: Train, plan: Plan | None) -> dict[str, str]:
    """Return the columns that a SELECT must have to use the model, and their kinds."""
    label = statement.label.name if statement.label is not None else None
    used = {one.column for one in plan.inputs} if plan is not None else {*schema.names} - {label}
    return {
        one.name: kind.value for one in schema if one.name in used and (kind := kind_of(one.type)) is not None
    }


def _label_kind(schema: pa.Schema, statement: Train) -> str | None:
    """Return the kind of the label that a SELECT must have to evaluate the model; None if there is none, or no name for it."""
    kind = kind_of(schema.field(statement.label.name).type) if statement.label is not None else None
    return None if kind is None else kind.value


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    found = summary.get("metrics") or {}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _foreseen(statement: Train, rows: _Rows, plan: Plan | None) -> pa.Table:
    """Return what a training would be done with."""
    facts: dict[str, Any] = {
        "model": statement.model.name,
        "rows": rows.training.training_rows,
        "validation_rows": rows.validation_rows,
    }
    if plan is not None:
        facts |= {"network": plan.network.kind, "settings": json.dumps(dict(plan.settings))}
    return one_row(facts)


def one_row(facts: Mapping[str, Any]) -> pa.Table:
    """Return facts as a table of one row."""
    import pyarrow as pa

    return pa.table({name: [value] for name, value in facts.items()})
