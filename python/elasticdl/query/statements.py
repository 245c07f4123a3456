"""The statements, as values: what `grammar.py` reads and `run.py` does.

Nothing in them is judged against a table, a model or the settings of jobs: that is `check.py` and `attributes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from elasticdl.query.script import Place
from elasticdl.tabular.columns import ColumnList, Value


@dataclass(frozen=True, slots=True)
class Attributes(Mapping[str, Value]):
    """What WITH says: names in lower case, and where each stands.

    Attributes:
        given: the values, by name.
        places: of the names, by name.
    """

    given: Mapping[str, Value] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)

    def __getitem__(self, name: str) -> Value:
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


@dataclass(frozen=True, slots=True)
class Named:
    """A name in a statement: of a column, a table or a model; names of tables may have dots.

    Attributes:
        name: without quotes.
        place: where it stands.
    """

    name: str
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A trained model.

    Attributes:
        name: the model's.
        version: how its version begins; empty for the newest.
        place: where it stands.
    """

    name: str
    version: str
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True)
class Query:
    """The SELECT before our part, sent to the database as it is.

    Attributes:
        text: of it.
        place: where it stands.
    """

    text: str
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Train:
    """`SELECT … TO TRAIN …`, or `SELECT … LABEL … INTO …` without a target.

    Attributes:
        select: the query.
        target: the kind of model, or a symbol of a model zoo; None chooses.
        attributes: of WITH.
        columns: each COLUMN.
        label: None if the model needs none.
        model: what the result is called.
        place: of the statement.
    """

    select: Query
    target: Named | None
    attributes: Attributes
    columns: tuple[ColumnList, ...]
    label: Named | None
    model: Named
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Predict:
    """`SELECT … TO PREDICT …`.

    Attributes:
        select: the query.
        table: what is written; None: the rows are the answer.
        column: of the predictions.
        attributes: of WITH.
        model: with which.
        place: of the statement.
    """

    select: Query
    table: Named | None
    column: Named
    attributes: Attributes
    model: ModelReference
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """`SELECT … TO EVALUATE …`.

    Attributes:
        select: the query.
        model: which.
        attributes: of WITH.
        label: None: the column that it was trained with.
        table: what is written; None: the values are the answer.
        place: of the statement.
    """

    select: Query
    model: ModelReference
    attributes: Attributes
    label: Named | None
    table: Named | None
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Explain:
    """`SELECT … TO EXPLAIN …`.

    Attributes:
        select: the query.
        model: which.
        attributes: of WITH.
        method: None: permutation.
        table: what is written; None: the values are the answer.
        place: of the statement.
    """

    select: Query
    model: ModelReference
    attributes: Attributes
    method: Named | None
    table: Named | None
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class ShowTrain:
    """`SHOW TRAIN model`: the statement that trained it."""

    model: ModelReference
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class ShowModels:
    """`SHOW MODELS [LIKE 'pattern']`."""

    like: str | None
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class DropModel:
    """`DROP MODEL [IF EXISTS] model`."""

    model: ModelReference
    if_exists: bool
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Native:
    """A statement of the database's own."""

    text: str
    place: Place = field(compare=False)


Statement = Train | Predict | Evaluate | Explain | ShowTrain | ShowModels | DropModel | Native
