"""What a model of a table is made of: its inputs, the features that columns become, the label, and how it is trained. Plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from elasticdl.tabular.spread import Scalar

PROBABILITIES = "probabilities"
"""Name of the output with the probability of each class."""


@dataclass(frozen=True, slots=True)
class Input:
    """A column that the model takes.

    Attributes:
        column: its name in the table.
        name: of the model's input.
        is_text: its values are text; else they are float64, and dates are seconds since 1970.
        length: elements of a list, which is cut or padded to so many; 0: it is no list.
        separator: with which the elements are written in a text; the exported model takes them as numbers.
    """

    column: str
    name: str
    is_text: bool
    length: int = 0
    separator: str = ""


class Transform(StrEnum):
    """What is done with a number before it is shifted and scaled."""

    NONE = "none"
    LOG = "log"
    MISSING = "missing"
    SINE = "sine"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class NumberFeature:
    """(x − shift) / scale of a column, as float32; a value that is missing is `fill`.

    Attributes:
        column: of numbers.
        transform: ln(1 + x), whether it is missing, or the place in the year.
        shift: see above.
        scale: see above; not 0.
        fill: see above.
        part: the part of the model that gets it, `wide` or `deep`; empty: all.
    """

    column: str
    transform: Transform = Transform.NONE
    shift: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    part: str = ""


class IdSource(StrEnum):
    """Where ids come from. The id 0 is that of a missing value, or padding."""

    TEXTS = "texts"  # place in a vocabulary; 1: unknown
    INTEGERS = "integers"
    HASH = "hash"
    BUCKETS = "buckets"
    HOUR = "hour"
    WEEKDAY = "weekday"
    WORDS = "words"
    CHARACTERS = "characters"
    NUMBERS = "numbers"  # the number itself, from 0 on
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class IdFeature:
    """A category of a column, or several of a list or a text.

    Attributes:
        name: unique in the plan.
        columns: one; those that are crossed.
        source: where ids come from.
        size: how many ids there are.
        width: of the embedding.
        values: vocabulary, or bounds of buckets.
        length: ids of a row; 0: one.
        combiner: how embeddings of several are combined.
        is_indicator: ids become zeros and ones, not embeddings.
        crossed: what is crossed.
        part: as of NumberFeature.
    """

    name: str
    columns: tuple[str, ...]
    source: IdSource
    size: int
    width: int
    values: tuple[Scalar, ...] = ()
    length: int = 0
    combiner: str = "mean"
    is_indicator: bool = False
    crossed: tuple[IdFeature, ...] = ()
    part: str = ""


class LabelKind(StrEnum):
    """The type of a label's values."""

    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Label:
    """What the model predicts.

    Attributes:
        column: its name, which is that of the output.
        kind: of its values.
        classes: sorted; none: a number is predicted.
        mean: of the number.
        deviation: of the number; not 0.
    """

    column: str
    kind: LabelKind
    classes: tuple[Scalar, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def units(self) -> int:
        """Return how many numbers a model gives for it: one, or one for each class where these are more than two."""
        return len(self.classes) if len(self.classes) > 2 else 1


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a column became what it is.

    Attributes:
        column: its name, or a function of columns.
        becomes: what it became.
        why: the statistic that decided, or who asked for it.
    """

    column: str
    becomes: str
    why: str

    def __str__(self) -> str:
        return f"{self.column}: {self.becomes} ({self.why})"


@dataclass(frozen=True, slots=True)
class Network:
    """The trained part.

    Attributes:
        kind: dnn, linear, wide_deep, deepfm or dcn.
        hidden_units: of the deep part's layers.
        activation: of these, by its name in Keras.
        dropout: after each of these.
        optimizer: by its name in Keras.
        optimizer_arguments: of its constructor.
        metrics: names of what is measured besides the loss.
    """

    kind: str
    hidden_units: tuple[int, ...] = (128, 64)
    activation: str = "relu"
    dropout: float = 0.0
    optimizer: str = "adam"
    optimizer_arguments: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A model of a table, to be built and trained.

    Attributes:
        inputs: the columns that it takes.
        numbers: features that are numbers.
        ids: features that are categories.
        label: what it predicts.
        network: the trained part.
        settings: of the job that trains it, by name.
        validates: whether it is evaluated on rows that are put aside, and stopped when it gets no better.
        reasons: of each column.
    """

    inputs: tuple[Input, ...]
    numbers: tuple[NumberFeature, ...]
    ids: tuple[IdFeature, ...]
    label: Label
    network: Network
    settings: Mapping[str, Any]
    validates: bool
    reasons: tuple[Reason, ...]

    @property
    def stops_early(self) -> bool:
        """Tell whether training ends when the loss of the rows put aside gets no better; servers of parameters take no callbacks."""
        return self.validates and not self.settings.get("num_ps_pods")

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read what `to_json` wrote."""
        found = json.loads(text)
        label, network = found["label"], found["network"]
        return Plan(
            tuple(Input(**one) for one in found["inputs"]),
            tuple(
                NumberFeature(**{**one, "transform": Transform(one["transform"])}) for one in found["numbers"]
            ),
            tuple(_id_feature(one) for one in found["ids"]),
            Label(**{**label, "kind": LabelKind(label["kind"]), "classes": tuple(label["classes"])}),
            Network(
                **{
                    **network,
                    "hidden_units": tuple(network["hidden_units"]),
                    "metrics": tuple(network["metrics"]),
                }
            ),
            found["settings"],
            found["validates"],
            tuple(Reason(**one) for one in found["reasons"]),
        )


def _id_feature(found: Mapping[str, Any]) -> IdFeature:
    return IdFeature(
        **{
            **found,
            "columns": tuple(found["columns"]),
            "source": IdSource(found["source"]),
            "values": tuple(found["values"]),
            "crossed": tuple(_id_feature(one) for one in found["crossed"]),
        }
    )
