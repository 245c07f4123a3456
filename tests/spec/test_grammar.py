"""The small grammars."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.spec.grammar import WorkerRange, parameters, parameters_text, worker_range

literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(names, literals))
def test_what_is_written_is_read_back(values: dict[str, object]) -> None:
    assert parameters(parameters_text(values)) == values


def test_semicolons_inside_values_belong_to_them() -> None:
    assert parameters("a='x;y'; b=[1, (2, ';')] ;; c={';': 1};") == {
        "a": "x;y",
        "b": [1, (2, ";")],
        "c": {";": 1},
    }


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("a=relu", "text needs quotes: a='relu'"),
        ("a=__import__('os').system('true')", "is not a Python literal"),
        ("a=1; a=2", "'a' is given twice"),
        ("a=1; b", "'b' is not of the form name=value"),
        ("a-b=1", "'a-b=1' is not of the form name=value"),
        ("=1", "'=1' is not of the form name=value"),
        ("a=", "'a=' is not of the form name=value"),
    ],
)
def test_a_mistake_is_shown_by_its_piece(text: str, piece: str) -> None:
    with pytest.raises(ValueError) as caught:
        parameters(text)
    assert piece in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parameters, worker_range):
        with contextlib.suppress(ValueError):
            read(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", WorkerRange(1, 3)), ("2:4", WorkerRange(2, 4)), (" 1 : 1 ", WorkerRange(1, 1))],
)
def test_worker_ranges(text: str, expected: WorkerRange) -> None:
    assert worker_range(text) == expected
    assert worker_range(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "0", "0:3", "4:2", "-1", "1:", ":2", "1:2:3", "two", "1.5", "²"])
def test_no_worker_ranges(text: str) -> None:
    with pytest.raises(ValueError):
        worker_range(text)
