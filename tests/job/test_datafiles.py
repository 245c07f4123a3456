"""Validation data that `feed` could not read as it reads training data is refused before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from elasticdl.data.readers.reader import Metadata, Reader
from elasticdl.errors import BadData
from elasticdl.job.datafiles import check_columns


@dataclass
class Source:
    metadata: Metadata


def check(training: Mapping[str, str], validation: Mapping[str, str]) -> None:
    one, other = (cast(Any, Source(Metadata(tuple(columns), columns))) for columns in (training, validation))
    check_columns(cast(Reader, one), cast(Reader, other))


@pytest.mark.parametrize(
    ("training", "validation"),
    [
        ({}, {}),
        ({"a": "string", "b": "string"}, {"column_0": "string", "column_1": "string"}),
        ({"a": "int64", "b": "bool"}, {"b": "float32", "a": "int8", "more": "string"}),
        ({"a": "float32[8]", "b": "float32[][4]"}, {"a": "float64[]", "b": "float32[][4]"}),
    ],
)
def test_columns_that_fit(training: Mapping[str, str], validation: Mapping[str, str]) -> None:
    check(training, validation)


@pytest.mark.parametrize(
    ("training", "validation", "message"),
    [
        ({"a": "string"}, {}, "training_data has the columns a, and validation_data has none; both need to be of one kind"),
        ({}, {"a": "int64"}, "validation_data has the columns a, and training_data has none"),
        ({"a": "string", "b": "string"}, {"a": "string"}, "training_data has 2 columns, a, b, and validation_data 1, a;"),
        ({"a": "int64"}, {"b": "int64"}, "the column 'a' of training_data is int64, and in validation_data it is missing;"),
        ({"a": "int64"}, {"a": "string"}, "the column 'a' of training_data is int64, and in validation_data it is string;"),
        ({"a": "float32"}, {"a": "float32[]"}, "is float32, and in validation_data it is float32[];"),
        ({"a": "float32[][4]"}, {"a": "float32[]"}, "is float32[][4], and in validation_data it is float32[];"),
        ({"a": "binary"}, {"a": "string"}, "is binary, and in validation_data it is string;"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit(
    training: Mapping[str, str], validation: Mapping[str, str], message: str
) -> None:
    with pytest.raises(BadData) as caught:
        check(training, validation)
    assert message in str(caught.value)
