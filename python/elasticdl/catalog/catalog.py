"""What a model has on the parameter servers: tables, dense variables, and the optimizer for both.

Workers find it out from the user's model; master and servers get it from them as JSON, and a checkpoint keeps it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from elasticdl._core import Catalog as CoreCatalog
from elasticdl.errors import BadModel
from elasticdl.files import reading
from elasticdl.files.reading import integer

SLOTS = 1024
"""Parts that a model is split into, each of which lives on one server or two."""
MOST_SLOTS = 1 << 16
"""Of any model, in the core."""
_WORD = (1 << 64) - 1
_WIDEST = 1 << 40
"""Elements of a row, or of a variable: far more than fit anywhere, and still a number for the core."""
_DIMENSIONS = 64
LARGEST_BYTES = 192 << 20
"""Of the variables in one part: they travel in one message, which has room for 256 MiB, with rows beside them."""


class InitialKind(StrEnum):
    """How the weights of a row that nobody has pushed are drawn; `first` and `second` mean what stands here."""

    CONSTANT = "constant"  # the value; nothing
    UNIFORM = "uniform"  # least; end
    NORMAL = "normal"  # mean; standard deviation
    TRUNCATED_NORMAL = "truncated_normal"  # as normal, within two deviations


@dataclass(frozen=True, slots=True)
class Initial:
    """The weights of a row before its first push: a function of seed, table and id."""

    kind: InitialKind
    first: float
    second: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table.

    Attributes:
        name: unique in the model.
        width: weights of a row.
        initial: of a new row.
        admission: a row is made at the push of its id that has this number; the gradients of those before it are dropped.
        decays: the optimizer's weight decay is for it.
    """

    name: str
    width: int
    initial: Initial
    admission: int = 1
    decays: bool = True


@dataclass(frozen=True, slots=True)
class Variable:
    """A dense variable.

    Attributes:
        name: unique in the model.
        shape: of its value, float32.
        decays: the optimizer's weight decay is for it.
        adds: what is pushed is added to it, and no gradient: statistics of the data, such as those of batch normalisation.
    """

    name: str
    shape: tuple[int, ...]
    decays: bool = True
    adds: bool = False

    @property
    def size(self) -> int:
        """Return the number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer.

    Attributes:
        name: one of those that the server knows.
        parameters: its numbers, flags as 0 and 1.
        weight_decay: share of the weights that goes at each step, times the learning rate; 0 for none.
    """

    name: str
    parameters: Mapping[str, float]
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Catalog:
    """All of it; tables and variables are named by their places.

    Attributes:
        seed: of the rows' initial weights.
        tables: in the order of their numbers.
        variables: in the order of their numbers.
        rule: for all of them.
        slots: parts that they are split into; the same for ever, because stamps and checkpoints are by slot.
    """

    seed: int
    tables: Sequence[Table]
    variables: Sequence[Variable]
    rule: Rule
    slots: int = SLOTS

    def check_sizes(self) -> None:
        """Look whether what lies in each slot can be sent. Raises BadModel for variables that are too large."""
        core = self.core()
        of_slot: dict[int, list[Variable]] = {}
        for place, variable in enumerate(self.variables):
            of_slot.setdefault(core.slot_of_variable(place), []).append(variable)
        for together in of_slot.values():
            size = 4 * sum(one.size for one in together)
            if size > LARGEST_BYTES:
                names = " and ".join(repr(one.name) for one in together)
                raise BadModel(
                    f"parameter servers keep {names} in one piece, which has {size / 2**20:,.0f} MiB and may have "
                    f"{LARGEST_BYTES >> 20}; make it an embedding or several smaller variables, or train without --num_ps_pods"
                )

    def core(self) -> CoreCatalog:
        """Return it as server and client take it. Raises ValueError for an optimizer that they do not know."""
        return CoreCatalog(
            seed=self.seed,
            slots=self.slots,
            tables=[
                (
                    one.name,
                    one.width,
                    (str(one.initial.kind), one.initial.first, one.initial.second),
                    one.admission,
                    one.decays,
                )
                for one in self.tables
            ],
            variables=[(one.name, one.size, one.decays, one.adds) for one in self.variables],
            optimizer=self.rule.name,
            parameters=dict(self.rule.parameters),
            weight_decay=self.rule.weight_decay,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as `from_json` reads it."""
        return {
            "seed": self.seed,
            "slots": self.slots,
            "tables": [asdict(one) for one in self.tables],
            "variables": [asdict(one) for one in self.variables],
            "rule": {
                "name": self.rule.name,
                "parameters": dict(self.rule.parameters),
                "weight_decay": self.rule.weight_decay,
            },
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Catalog:
        """Read what `to_json` returned. Raises BadModel for anything else."""
        try:
            rule = reading.fields(reading.field(body, "rule"))
            parameters = reading.fields(reading.field(rule, "parameters"))
            return cls(
                seed=integer(reading.field(body, "seed"), most=_WORD),
                slots=integer(reading.field(body, "slots"), 1, MOST_SLOTS),
                tables=tuple(_table(one) for one in reading.items(reading.field(body, "tables"))),
                variables=tuple(_variable(one) for one in reading.items(reading.field(body, "variables"))),
                rule=Rule(
                    reading.text(reading.field(rule, "name")),
                    {reading.text(key): reading.number(value) for key, value in parameters.items()},
                    reading.number(reading.field(rule, "weight_decay")),
                ),
            )
        except ValueError as error:
            raise BadModel(f"this is no description of a model on parameter servers: {error}") from None

    def text(self) -> str:
        """Return its one text, by which two catalogs are compared; `read_catalog` is the inverse."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


def first_difference(one: Catalog, other: Catalog) -> str:
    """Return in words what is different first in two models, with both values; empty if nothing is but the seed and the number of slots.

    The seed decides on rows that nobody has trained yet, the slots on where rows lie: both are a job's, and not its model's.
    """
    pairs: list[tuple[str, object, object]] = [
        ("the optimizer", one.rule.name, other.rule.name),
        *_named("the optimizer's", one.rule.parameters, other.rule.parameters),
        ("the weight decay", one.rule.weight_decay, other.rule.weight_decay),
    ]
    tables = [[asdict(table) for table in each.tables] for each in (one, other)]
    variables = [[asdict(variable) for variable in each.variables] for each in (one, other)]
    for kind, (mine, theirs) in (("table", tables), ("variable", variables)):
        pairs.append((f"the number of {kind}s", len(mine), len(theirs)))
        for first, second in zip(mine, theirs, strict=False):
            pairs.append((f"the name of a {kind}", first["name"], second["name"]))
            pairs += _named(f"{kind} {first['name']!r}:", first, second)
    return next((f"{what} {mine} and {theirs}" for what, mine, theirs in pairs if mine != theirs), "")


def _named(whose: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    return [(f"{whose} {key}", one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]


def read_catalog(text: str) -> Catalog:
    """Read what `Catalog.text` returned. Raises BadModel for anything else."""
    try:
        body = reading.load(text)
    except ValueError as error:
        raise BadModel(f"this is no description of a model on parameter servers: {error}") from None
    return Catalog.from_json(body)


def _table(body: object) -> Table:
    initial = reading.field(body, "initial")
    return Table(
        name=reading.text(reading.field(body, "name")),
        width=integer(reading.field(body, "width"), 1, _WIDEST),
        initial=Initial(
            InitialKind(reading.text(reading.field(initial, "kind"))),
            reading.number(reading.field(initial, "first")),
            reading.number(reading.field(initial, "second")),
        ),
        admission=integer(reading.field(body, "admission"), most=(1 << 32) - 1),
        decays=reading.flag(reading.field(body, "decays")),
    )


def _variable(body: object) -> Variable:
    shape = tuple(integer(size, most=_WIDEST) for size in reading.items(reading.field(body, "shape")))
    if len(shape) > _DIMENSIONS or math.prod(shape) > _WIDEST:
        raise ValueError(
            f"a variable can't have the {len(shape)} dimensions of its shape, or as many elements"
        )
    return Variable(
        reading.text(reading.field(body, "name")),
        shape,
        reading.flag(reading.field(body, "decays")),
        reading.flag(reading.field(body, "adds")),
    )
