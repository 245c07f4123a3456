"""The plan of a model, from a table's types and statistics, the label, and what a person asked for. Pure: the same words, the same plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from elasticdl.errors import BadData
from elasticdl.spec.databases import as_written
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.becoming import BLURRED, Became, becomes, input_name, instead_of_blurred
from elasticdl.tabular.columns import ColumnList, Value
from elasticdl.tabular.features import IdFeature, Input, Label, LabelKind, NumberFeature, Plan, Reason
from elasticdl.tabular.kinds import Kind, instead, instead_of_label, kind_of
from elasticdl.tabular.network import Task, network_of
from elasticdl.tabular.overriding import Asked, asked_for
from elasticdl.tabular.statistics import Column, Statistics

if TYPE_CHECKING:
    import pyarrow as pa

FEW_CLASSES = 20
"""Integers of at most so many values are classes."""
MOST_CLASSES = 1_000
T = TypeVar("T")

_LARGE = 32 << 20
"""Bytes of tables, together, from which on they are on parameter servers."""
_FLOAT = 4
_STEPS = 3_000
_LEAST_EPOCHS, _MOST_EPOCHS = 3, 200
_LEAST_VALIDATED = 200
"""Rows from which on some are put aside."""


def derive(
    schema: pa.Schema,
    statistics: Statistics,
    label: str,
    *,
    columns: Sequence[ColumnList] = (),
    target: str | None = None,
    attributes: Mapping[str, Value] | None = None,
    rows: int | None = None,
) -> Plan:
    """Return the plan of a model that predicts `label` from the other columns.

    Args:
        schema: types of the columns, as the database has them.
        statistics: of the rows that are trained on.
        label: a column.
        columns: what a person says about columns; all else is derived.
        target: name of a model, such as `dnn_classifier`; none: dnn.
        attributes: values by dotted names: `model.hidden_units`, `optimizer.learning_rate`, `train.epoch`, ….
        rows: that are trained on; of the statistics unless given.

    Raises BadData for a table or label of which no model can be made, BadSetting for what was asked for; messages say what to do.
    """
    rows = statistics.rows if rows is None else rows
    if label not in schema.names:
        raise BadData(
            f"there is no column {label!r}{nearest(label, schema.names)}; the label is one of {_list(schema.names)}"
        )
    if not rows:
        raise BadData("there are no rows to train on")
    unusable = [field for field in schema if field.name != label and not _is_usable(field, statistics)]
    if unusable:
        first = unusable[0]
        raise BadData(
            f"the column {first.name!r} is {first.type}, of which no model can be made; {instead(first.name, first.type)}"
        )
    wants = network_of(target, attributes or {})
    of_label = _label(schema.field(label), statistics.columns.get(label), wants.task)
    features = _features(schema, statistics, label, asked_for(columns, schema, statistics, label))
    _check_names(features)
    plan = Plan(
        tuple(_once([given for one in features for given in one.inputs])),
        tuple(_once([number for one in features for number in one.numbers])),
        tuple(_once([ids for one in features for ids in one.ids])),
        of_label,
        wants.network,
        {},
        rows >= _LEAST_VALIDATED,
        (*(one.reason for one in features), _label_reason(of_label, statistics.columns[label])),
    )
    if not plan.numbers and not plan.ids:
        raise BadData(
            "no column is left to learn from: " + "; ".join(map(str, plan.reasons[:-1]))
            if features
            else "there is no column besides the label"
        )
    return replace(plan, settings=_settings(plan, rows, attributes or {}))


def _is_usable(field: pa.Field, statistics: Statistics) -> bool:
    import pyarrow as pa

    return pa.types.is_null(field.type) or (
        kind_of(field.type) is not None and field.name in statistics.columns
    )


# ------------------------------------------------------------------ columns


def _features(schema: pa.Schema, statistics: Statistics, label: str, asked: Asked) -> list[Became]:
    """Return what each column became, in the order of the table, and then what was asked for."""
    import pyarrow as pa

    found = []
    for field in schema:
        if field.name == label or not asked.derives(field.name):
            continue
        if pa.types.is_null(field.type):
            found.append(Became(Reason(field.name, "left out", "it has no value in any row")))
            continue
        kind = kind_of(field.type)
        assert kind is not None, "checked above"
        inner = kind_of(field.type.value_type) if kind is Kind.LIST else None
        found.append(becomes(field.name, kind, inner, statistics.columns[field.name]))
    return [*found, *asked.became]


def _once(found: Sequence[T]) -> list[T]:
    return list(dict.fromkeys(found))


def _check_names(features: Sequence[Became]) -> None:
    """Check that inputs of different columns have different names."""
    seen: dict[str, Input] = {}
    for one in (given for became in features for given in became.inputs):
        other = seen.setdefault(one.name, one)
        if other.column != one.column:
            raise BadData(
                f"the columns {other.column!r} and {one.column!r} would both be the input {one.name!r}; rename one: "
                f'"{one.column}" AS name'
            )
        if other != one:
            raise BadData(
                f"the column {one.column!r} is taken as {_form(other)} and as {_form(one)}; choose one of them"
            )


def _form(given: Input) -> str:
    what = "text" if given.is_text else "numbers"
    return f"{given.length} {what}" if given.length else f"a {'text' if given.is_text else 'number'}"


# ------------------------------------------------------------------ the label


def _label(field: pa.Field, column: Column | None, task: Task | None) -> Label:
    kind, name = kind_of(field.type), field.name
    if column is None or kind not in (Kind.TEXT, Kind.BOOLEAN, Kind.INTEGER, Kind.NUMBER):
        raise BadData(
            f"the label {name!r} is {field.type}; a label is text, boolean, or a number: {instead_of_label(name, field.type)}"
        )
    written = as_written(name)
    if column.nulls and kind is Kind.NUMBER:
        # NaN is not null, and databases have no common name for what is finite
        raise BadData(
            f"the label {name!r} is missing, NaN or infinite in {column.nulls:,} of {column.rows:,} rows to train on; add WHERE "
            f"abs({written}) < 1e308"
        )
    if column.nulls:
        raise BadData(
            f"{column.nulls:,} of {column.rows:,} rows have no {name}; add WHERE {written} IS NOT NULL"
            + (f" AND {written} <> ''" if kind is Kind.TEXT else "")
        )
    if kind is Kind.INTEGER and column.is_blurred:
        raise BadData(f"the label {name!r} has {BLURRED}; {instead_of_blurred(name)}")
    of = LabelKind(kind.value)
    values = column.values
    few = values is not None and values.is_complete
    if task is Task.REGRESSION and kind is Kind.TEXT:
        raise BadData(f"the label {name!r} is text, which a regression can't predict; ask for a classifier")
    whole = (
        values is not None
        and few
        and all(float(one).is_integer() for one, _ in values.counts if kind is not Kind.TEXT)
    )
    if (
        kind in (Kind.TEXT, Kind.BOOLEAN)
        or task is Task.CLASSIFICATION
        or (kind is Kind.INTEGER and few and values is not None and values.distinct <= FEW_CLASSES)
    ) and task is not Task.REGRESSION:
        if values is None or not few or values.distinct > MOST_CLASSES:
            many = f"{values.distinct:,}" if values is not None else f"more than {MOST_CLASSES:,}"
            raise BadData(
                f"the label {name!r} has {many} different values, of which at most {MOST_CLASSES:,} can be classes"
                + (
                    "; group them in the SELECT"
                    if kind is Kind.TEXT
                    else "; ask for a regressor, or group them in the SELECT"
                )
            )
        if not whole:
            raise BadData(
                f"the label {name!r} has fractions, which can't be classes; ask for a regressor, or CAST it in the SELECT"
            )
        if values.distinct < 2:
            raise BadData(
                f"the label {name!r} is {_value(of, values.counts[0][0])!r} in all rows; there is nothing to learn"
            )
        classes = tuple(sorted(_value(of, one) for one, _ in values.counts))
        return Label(name, of, classes)
    assert column.numbers is not None, "a column of numbers"
    moments = column.numbers.moments
    if not moments.deviation:
        raise BadData(f"the label {name!r} is {moments.mean:g} in all rows; there is nothing to learn")
    return Label(name, LabelKind.NUMBER, (), moments.mean, moments.deviation)


def _value(kind: LabelKind, value: str | int | float) -> str | int | float:
    match kind:
        case LabelKind.TEXT:
            return str(value)
        case LabelKind.BOOLEAN | LabelKind.INTEGER:
            return int(value)
    return float(value)


def _label_reason(label: Label, column: Column) -> Reason:
    if not label.classes:
        return Reason(
            label.column, "a number to predict", f"mean {label.mean:g}, deviation {label.deviation:g}"
        )
    shown = ", ".join(map(str, label.classes[:5])) + (", …" if len(label.classes) > 5 else "")
    return Reason(label.column, f"{len(label.classes)} classes", f"{label.kind} of the values {shown}")


# ------------------------------------------------------------------ the job


def bytes_of(ids: Sequence[IdFeature]) -> int:
    """Return the bytes of all embeddings."""
    return sum(one.size * one.width * _FLOAT for one in ids if not one.is_indicator)


def _settings(plan: Plan, rows: int, attributes: Mapping[str, Value]) -> dict[str, int]:
    """Return the settings of the job, of what was asked for or of the number of rows."""
    minibatch = int(min(256, max(8, 2 ** math.floor(math.log2(max(1.0, rows / 32))))))
    minibatch = _positive(attributes, "train.batch_size", minibatch)
    servers = attributes.get("engine.num_ps_pods")
    if servers is None:
        servers = 2 if bytes_of(plan.ids) >= _LARGE else 0
    steps = math.ceil(rows / minibatch)
    epochs = _LEAST_EPOCHS if servers else min(_MOST_EPOCHS, max(_LEAST_EPOCHS, math.ceil(_STEPS / steps)))
    found = {"minibatch_size": minibatch, "num_epochs": _positive(attributes, "train.epoch", epochs)}
    if servers and isinstance(servers, int):
        found["num_ps_pods"] = servers
    return found


def _positive(attributes: Mapping[str, Value], name: str, otherwise: int) -> int:
    from elasticdl.errors import BadSetting

    value = attributes.get(name, otherwise)
    if type(value) is not int or value < 1:
        raise BadSetting(f"{name} is a number of 1 or more; got {value!r}")
    return value


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


__all__ = ["NumberFeature", "Plan", "derive", "input_name"]
