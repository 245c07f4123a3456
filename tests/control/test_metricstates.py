"""States of metrics: described, sent, combined."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.control.protocol.metricstates import (
    LARGEST_STATE,
    Metric,
    MetricCatalog,
    StateArray,
    combine,
    pack,
    read_metrics,
    unpack,
)
from elasticdl.errors import BadModel

CATALOG = MetricCatalog(
    (
        Metric("val_loss", "", (StateArray("total", (), "float64"), StateArray("count", (), "float32"))),
        Metric("val_yes_matrix", "yes", (StateArray("matrix", (2, 3), "int32"),)),
        Metric(
            "val_last", "", (StateArray("last", (2,), "float32"), StateArray("seen", (), "bool")), adds=False
        ),
        Metric("val_bytes", "", (StateArray("counts", (2,), "uint8"),)),
    )
)


def state(number: int) -> list[np.ndarray]:
    random = np.random.default_rng(number)
    return [
        np.array(random.normal()),
        np.array(random.normal(), np.float32),
        random.integers(2**30, 2**31 - 1, (2, 3), np.int32),
        random.normal(size=2).astype(np.float32),
        np.array(number % 2 == 1),
        random.integers(0, 256, 2, np.uint8),
    ]


def test_a_catalog_is_the_same_after_it_was_written() -> None:
    text = CATALOG.text()
    assert read_metrics(text) == CATALOG
    assert json.loads(text)["metrics"][1]["state"] == [{"name": "matrix", "shape": [2, 3], "dtype": "int32"}]


@pytest.mark.parametrize(
    "change",
    [
        lambda metric, array: array.update(dtype="object"),
        lambda metric, array: array.update(dtype="<f4"),
        lambda metric, array: array.update(shape=[-1]),
        lambda metric, array: array.update(shape=[1] * 33),
        lambda metric, array: array.update(shape=[1 << 12, 1 << 12]),
        lambda metric, array: array.update(shape=[LARGEST_STATE, LARGEST_STATE, LARGEST_STATE]),
        lambda metric, array: array.pop("name"),
        lambda metric, array: metric.update(adds=1),
        lambda metric, array: metric.update(state={}),
    ],
)
def test_what_is_no_catalog_is_refused_before_anything_is_allocated(change: Any) -> None:
    body = json.loads(CATALOG.text())
    change(body["metrics"][0], body["metrics"][0]["state"][0])
    with pytest.raises(ValueError, match=r"expected|there is no|can't be"):
        MetricCatalog.from_json(body)


def test_a_state_that_is_too_large_is_refused_by_its_largest_metric() -> None:
    elements = LARGEST_STATE // 8
    fits = Metric("val_fits", "", (StateArray("all", (elements,), "float64"),))
    MetricCatalog((fits,)).check_size("model.py")
    more = Metric("val_more", "", (StateArray("one", (), "uint8"),))
    with pytest.raises(
        BadModel, match=r"model.py: the metrics keep 4.0 MiB, most of it val_fits, and may keep 4 MiB"
    ):
        MetricCatalog((fits, more)).check_size("model.py")


@given(st.integers(0, 5))
def test_states_are_the_same_after_they_were_sent(tasks: int) -> None:
    states = [state(number) for number in range(tasks)]
    sent = [unpack(CATALOG.task_arrays(), pack(one)) for one in states]
    for mine, theirs in zip(states, sent, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    combined = combine(CATALOG, sent)
    described = CATALOG.combined_arrays(tasks)
    assert [(one.shape, str(one.dtype)) for one in combined] == [(one.shape, one.dtype) for one in described]
    for one, other in zip(combined, unpack(described, pack(combined)), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_floats_are_added_as_float64_in_the_order_of_tasks_and_whole_numbers_exactly() -> None:
    states = [state(number) for number in range(7)]
    combined = combine(CATALOG, iter(states))
    for place in (0, 1):
        total = np.float64(0)
        for one in states:
            total = total + np.float64(one[place])
        assert combined[place] == total
    np.testing.assert_array_equal(combined[2], sum(one[2].astype(object) for one in states))
    assert combined[2].max() > 2**32
    np.testing.assert_array_equal(combined[5], sum(one[5].astype(object) for one in states))


def test_states_that_do_not_add_stay_one_by_one() -> None:
    states = [state(number) for number in range(3)]
    combined = combine(CATALOG, states)
    for number, one in enumerate(states):
        np.testing.assert_array_equal(combined[3][number], one[3])
        assert combined[4][number] == one[4]


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b""])
def test_a_state_of_another_length_is_refused(change: Any) -> None:
    body = pack(state(1))
    with pytest.raises(ValueError, match=rf"the state of metrics has \d+ bytes; expected {len(body)}"):
        unpack(CATALOG.task_arrays(), change(body))
