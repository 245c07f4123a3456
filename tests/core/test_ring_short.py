"""Sums of which the first elements travel as bfloat16: each contribution is rounded, and so is the sum; the others keep all bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from elasticdl.errors import RingBroken
from tests.core.members import HOSTS, TRANSPORTS, group, side_by_side
from tests.core.test_ring import SIZES, drawn


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    transport=st.sampled_from((*TRANSPORTS, *HOSTS)),
    count=st.integers(2, 5),
    sizes=st.lists(st.tuples(SIZES, st.integers(0, 300)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_all_get_the_rounded_sum_of_rounded_contributions(
    tmp_path_factory: pytest.TempPathFactory,
    transport: str,
    count: int,
    sizes: list[tuple[int, int]],
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    hosts = transport.partition(":")[2]
    count = len(hosts) or count
    with group(tmp_path_factory.mktemp("r"), count, transport) as rings:
        for step, (short, rest) in enumerate(sizes, 1):
            given_ = drawn(random, count, short + rest, "float32")
            results = [np.empty_like(one) for one in given_]
            before = [one.copy() for one in given_]
            totals = side_by_side(
                *(
                    partial(ring.reduce, step, given_[rank], results[rank], [float(rank), 0.1], short)
                    for rank, ring in enumerate(rings)
                )
            )
            assert len({(one.tobytes(), str(total)) for one, total in zip(results, totals, strict=True)}) == 1
            assert totals[0][0] == sum(range(count))
            wide = before[0][:short].astype(bfloat16).astype(np.float32)
            for one in before[1:]:
                wide += one[:short].astype(bfloat16).astype(np.float32)
            if hosts:  # each host's sum is rounded, too
                np.testing.assert_allclose(results[0][:short], wide, rtol=0.01, atol=0.05)
            else:
                np.testing.assert_array_equal(results[0][:short], wide.astype(bfloat16).astype(np.float32))
            exact = before[0][short:].copy()
            for one in before[1:]:
                exact += one[short:]
            np.testing.assert_allclose(results[0][short:], exact, rtol=0, atol=1e-5 if hosts else 0)
            for one, kept in zip(given_, before, strict=True):
                np.testing.assert_array_equal(one, kept)


def test_nothing_is_rounded_if_nothing_travels(tmp_path: Path) -> None:
    given_ = np.array([1 / 3, 1 / 7], np.float32)
    result = np.empty_like(given_)
    with group(tmp_path, 1) as [ring]:
        assert ring.reduce(1, given_, result, [1.5], 2) == [1.5]
    np.testing.assert_array_equal(result, given_)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with group(tmp_path, 1) as [ring]:
        ones = np.ones(8, np.float32)
        with pytest.raises(ValueError, match="9 elements were to be short, of 8 and 8"):
            ring.reduce(1, ones, np.empty_like(ones), [], 9)
        with pytest.raises(ValueError, match="only float32 can travel as bfloat16"):
            ring.reduce(1, np.ones(8), np.empty(8), [], 8)
        # Neither ends the ring.
        assert ring.reduce(1, ones, np.empty_like(ones), [1.5], 8) == [1.5]


def test_who_sends_another_type_is_malformed(tmp_path: Path) -> None:
    with group(tmp_path, 2) as rings:
        ones = np.ones(8, np.float32)
        outcomes = side_by_side(
            lambda: rings[0].reduce(1, ones, np.empty_like(ones), [], 8),
            lambda: rings[1].reduce(1, ones, np.empty_like(ones), []),
        )
    assert {type(outcome) for outcome in outcomes} == {RingBroken}
