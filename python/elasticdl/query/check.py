"""What a statement says, held against the columns of its SELECT: before a row is read, and before anything is made.

Names first, then types. What later steps refuse (a plan that can't be made, a database's own error) gets its place in the statement here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elasticdl.errors import BadInput, BadStatement
from elasticdl.query.script import Place
from elasticdl.query.statements import Evaluate, Explain, Predict, Query, Train
from elasticdl.spec.databases import quoted
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.columns import ColumnList, Name, names
from elasticdl.tabular.features import PROBABILITIES
from elasticdl.tabular.kinds import Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

OF_RECORDS = ("shard", "record")
"""Columns of predictions that say which record a row is of."""
_MOST_SHOWN = 20
_CASTS = {Kind.TEXT: "VARCHAR", Kind.BOOLEAN: "BOOLEAN", Kind.INTEGER: "BIGINT", Kind.NUMBER: "DOUBLE"}
_NUMBERS = (Kind.BOOLEAN, Kind.INTEGER, Kind.NUMBER)
"""Kinds of which one may stand for another: a column of whole numbers may have become one of fractions."""


def train(statement: Train, schema: pa.Schema, *, own: bool = True) -> None:
    """Check the names of a training; `own`: the model is one of ours, whose output is called as the label. Raises BadStatement."""
    _once(statement.select, schema.names)
    label = statement.label
    if label is not None and label.name not in schema.names:
        raise label.place.error(_no_column(label.name, schema.names))
    if own and label is not None and label.name in (PROBABILITIES, *OF_RECORDS):
        raise label.place.error(
            f"a label can't be called {label.name!r}, as predictions have another column of this name; give it another name with AS"
        )
    for listed in statement.columns:
        for name in _names(listed):
            place = _place(statement.place, name)
            if name.name not in schema.names:
                raise place.error(_no_column(name.name, schema.names))
            if label is not None and name.name == label.name:
                raise place.error(f"{name.name!r} is the label; a model can't have it as an input as well")


def use(
    statement: Predict | Evaluate | Explain,
    schema: pa.Schema,
    needed: Mapping[str, str],
    label: str | None,
    dialect: str = "duckdb",
    label_kind: str | None = None,
) -> None:
    """Check that a SELECT has what a model needs.

    Args:
        statement: that uses the model.
        schema: of the SELECT.
        needed: the columns that the model was trained on, and their kinds (`tabular.kinds.Kind`).
        label: the column with the true values; None where none is needed.
        dialect: of the database, for what a message says to write.
        label_kind: the label's kind in the training; None if that is not known.

    Raises BadStatement.
    """
    _once(statement.select, schema.names)
    place = _short(statement.select.place)
    given = statement.label if isinstance(statement, Evaluate) else None
    of_label = given.place if given is not None else place
    if label is not None and label not in schema.names:
        raise of_label.error(_no_column(label, schema.names))
    for name, kind in needed.items():
        if name not in schema.names:
            raise place.error(
                f"{_no_column(name, schema.names)}; the model {statement.model.name} was trained with it"
            )
        _as_trained(statement, schema.field(name), Kind(kind), dialect, place)
    if label is not None and label_kind is not None:
        _as_trained(statement, schema.field(label), Kind(label_kind), dialect, of_label)


def _as_trained(
    statement: Predict | Evaluate | Explain, column: pa.Field, trained: Kind, dialect: str, place: Place
) -> None:
    """Check that a column has the kind that it had in the training. Raises BadStatement at `place`."""
    now = kind_of(column.type)
    if _is_open(column.type) or (now is not None and _class(now) == _class(trained)):
        return
    cast = _CASTS.get(trained)
    then = f"write {_cast(column.name, cast, dialect)}" if cast else "SELECT it as it was in the training"
    raise place.error(
        f"the column {column.name!r} is {column.type} here, and was {trained} when {statement.model.name} was trained; {then}"
    )


def numbers(columns: Mapping[str, Kind | str | None]) -> frozenset[str]:
    """Return which of these columns are numbers in the files of a model, dates among them; by name and `tabular.kinds.Kind`."""
    return frozenset(name for name, kind in columns.items() if kind not in (Kind.TEXT, Kind.LIST, None))


def same_kind(name: str, found: pa.DataType, trained: pa.DataType, place: Place) -> None:
    """Check that a column has text, or numbers, in rows to validate on if it has in those that are trained on.

    Raises BadStatement at the place of validation.select.
    """
    now, then = kind_of(found), kind_of(trained)
    if _is_open(found) or now is None or then is None or _class(now) == _class(then):
        return
    raise place.error(
        f"validation.select: the column {name!r} is {found} here, and {trained} in the rows that are trained on; CAST it there"
    )


def _cast(name: str, kind: str, dialect: str) -> str:
    """Return how a database's SQL gives a column another type."""
    text = f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
    if dialect == "duckdb":
        return text
    from sqlglot import transpile

    (written,) = transpile(f"SELECT {text}", read="duckdb", write=dialect)
    return str(written).removeprefix("SELECT ")


def located(error: BadInput, statement: Train | Predict | Evaluate | Explain) -> BadStatement:
    """Return an error that was found without the statement, with its place there: that of the name which it tells of."""
    if isinstance(error, BadStatement):
        return error
    text = str(error)
    for attribute, place in statement.attributes.places.items():
        if attribute in text:
            return place.error(text)
    if isinstance(statement, Train):
        for listed in statement.columns:
            for item in listed.items:
                if str(item) in text and not isinstance(item, Name):
                    return _place_of_call(statement.place, item.at).error(text)
            for name in _names(listed):
                if repr(name.name) in text:
                    return _place(statement.place, name).error(text)
        for named in (statement.label, statement.target):
            if named is not None and repr(named.name) in text:
                return named.place.error(text)
    return _short(statement.select.place).error(text)


def refused(reason: str, place: int | None, query: Query) -> BadStatement:
    """Return a database's error with its place in the statement.

    Args:
        reason: what the database says.
        place: the character of the query that it names, if it names one.
        query: what was sent.
    """
    text = f"the database says: {reason}"
    if place is None or not 0 <= place <= len(query.text):
        return _short(query.place).error(text)
    start = query.place.start + place
    end = start
    while end < query.place.end and (
        query.place.script.text[end].isalnum() or query.place.script.text[end] == "_"
    ):
        end += 1
    return Place(query.place.script, start, max(end, start + 1)).error(text)


def _once(query: Query, found: Sequence[str]) -> None:
    """Check that no two columns have one name, in whatever case: most databases don't tell them apart."""
    for name, count in Counter(one.lower() for one in found).items():
        if count > 1:
            twice = [one for one in found if one.lower() == name]
            raise _short(query.place).error(
                f"the SELECT gives {count} columns {' and '.join(map(repr, dict.fromkeys(twice)))}; name each column once, with AS"
            )


def _no_column(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    columns = ", ".join(known[:_MOST_SHOWN]) + (", …" if len(known) > _MOST_SHOWN else "")
    return f"the SELECT gives no column {name!r}{near or f'; it gives {columns}'}"


def _names(listed: ColumnList) -> list[Name]:
    return [name for item in listed.items for name in names(item)]


def _place(statement: Place, name: Name) -> Place:
    """Return the place of a column's name; quotes around it are left out of its length."""
    return Place(statement.script, name.at, name.at + len(name.name))


def _place_of_call(statement: Place, at: int) -> Place:
    text = statement.script.text
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return Place(statement.script, at, end)


def _short(place: Place) -> Place:
    """Return the first line of a piece: no message shows more."""
    line = place.script.text.find("\n", place.start, place.end)
    return Place(place.script, place.start, line if line >= 0 else place.end)


def _class(kind: Kind) -> Kind:
    return Kind.NUMBER if kind in _NUMBERS else kind


def _is_open(found: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_null(found))
