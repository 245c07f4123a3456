"""What the reference framework takes from a `feed`: features and labels, and of a prediction features alone as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData
from elasticdl.reference.building import feed
from elasticdl.spec.jobspec import Mode

ROWS = [np.arange(3.0), np.arange(3.0) + 1]
FEATURES = {"an array": np.stack(ROWS), "several by name": {"a": np.stack(ROWS), "b": np.ones(2)}}


def user_of(made: object) -> Any:
    return SimpleNamespace(feed=lambda records, mode, metadata: made, path=Path("model.py"))


@pytest.mark.parametrize("made", FEATURES.values(), ids=FEATURES)
def test_a_prediction_takes_features_alone(made: object) -> None:
    batch = feed(user_of(made), None, ROWS, Mode.PREDICTION)
    assert batch.examples == 2
    assert batch.features is made
    assert batch.labels.shape == (2,)
    with pytest.raises(BadData, match=r"model\.py: feed returned a .*; expected \(features, labels\)"):
        feed(user_of(made), None, ROWS, Mode.TRAINING)


@pytest.mark.parametrize("made", [None, {}, (1, 2, 3)])
def test_anything_else_is_refused_in_a_prediction_too(made: object) -> None:
    with pytest.raises(BadData, match=r"expected \(features, labels\)"):
        feed(user_of(made), None, ROWS, Mode.PREDICTION)


def raising(error: Exception) -> Any:
    def feed(records: object, mode: str, metadata: object) -> object:
        raise error

    return SimpleNamespace(feed=feed, path=Path("model.py"))


TABLE = SimpleNamespace(column_names=tuple(f"c{place}" for place in range(40)))


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyError("c40"), r"the data has no column 'c40'; did you mean c\d+\?; it has c0, .*, c29 and 10 more$"),
        (ValueError("'x y' is not in list"), r"the data has no column 'x y'; it has c0, .*, c29 and 10 more$"),
        (KeyError("c7"), r"KeyError: 'c7'$"),
        (KeyError(7), r"KeyError: 7$"),
        (ValueError("could not convert string to float: 'a'"), r"to float: 'a'$"),
    ],
)  # fmt: skip
def test_only_what_is_no_column_is_said_to_be_none(raised: Exception, said: str) -> None:
    with pytest.raises(BadData, match=rf"model\.py: feed failed: .*{said}"):
        feed(raising(raised), TABLE, [["1"] * 40])
    with pytest.raises(BadData, match=r"^model\.py: feed failed: [^;]*$"):
        feed(raising(raised), None, [b"no table"])


@pytest.mark.parametrize(("name", "separator"), [("a;b", "';'"), ("a\tb", r"'\t'"), ("a|b", "'|'")])
def test_fields_that_are_not_separated(name: str, separator: str) -> None:
    row = SimpleNamespace(column_names=(name,))
    with pytest.raises(BadData) as caught:
        feed(raising(ValueError("not a number")), row, [["1;2"]])
    assert str(caught.value) == (
        f"model.py: feed failed: ValueError: not a number; a record has one field, {name!r}; if {separator} separates fields, "
        f'give --data_reader_params="delimiter={separator}"'
    )


@pytest.mark.parametrize("raised", [ConnectionError("away"), MemoryError()])
def test_what_another_try_may_not_raise_is_no_bad_data(raised: Exception) -> None:
    with pytest.raises(type(raised)):
        feed(raising(raised), None, ROWS)
