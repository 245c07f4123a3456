"""Trees travel as a description and bytes, and what others send is checked before anything is made of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays

from elasticdl.errors import TransferFailed
from elasticdl.worker import tree

ARRAYS = arrays.arrays(
    some.sampled_from(["float32", "float64", "int64", "bool", "uint8"]),
    arrays.array_shapes(min_dims=0, min_side=0),
)
LEAVES = ARRAYS | some.none() | some.booleans() | some.integers() | some.floats() | some.text()
TREES = some.recursive(
    LEAVES,
    lambda inner: (
        some.lists(inner)
        | some.lists(inner).map(tuple)
        | some.dictionaries(some.integers() | some.text(), inner)
    ),
    max_leaves=12,
)


def sent(described: Any, found: list[np.ndarray]) -> Any:
    """Return the tree that arrives elsewhere."""
    described = json.loads(json.dumps(described))
    body = np.frombuffer(b"".join(one.tobytes() for one in found), np.uint8)
    return tree.build(described, iter(tree.split(body, list(tree.sizes(described)))))


def same(one: Any, other: Any) -> bool:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(TREES)
def test_what_arrives_is_what_was_described(value: Any) -> None:
    found: list[np.ndarray] = []
    described = tree.describe(value, found)
    assert same(sent(described, found), value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "it has a builtins.object"),
        ({"a": {1.5: 2}}, "it has the key 1.5"),
        ([np.array([object()])], "it has a numpy.ndarray"),
        ([{1, 2}], "it has a builtins.set"),
    ],
)
def test_what_a_tree_can_not_have_is_refused(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        tree.describe(value, [])


def test_depth_is_bounded_on_both_sides() -> None:
    value: Any = None
    described: Any = {"value": None}
    for _ in range(40):
        value, described = [value], {"list": [described]}
    with pytest.raises(TypeError, match="nested more than 32 levels deep"):
        tree.describe(value, [])
    with pytest.raises(TransferFailed, match="nested more than 32 levels deep"):
        list(tree.sizes(described))


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (None, "a structure that is none"),
        ({"lists": []}, "a structure that is none"),
        ({"array": ["float32", [-1]]}, "a structure that is none"),
        ({"array": ["object", [1]]}, "an array of the type 'object'"),
        ({"array": ["V0", [1]]}, "an array of the type 'V0'"),
        ({"dict": [["a"]]}, "a dictionary that is none"),
        ({"dict": [[["a"], {"value": 1}]]}, "a dictionary that is none"),
        ({"float": "half"}, "the number 'half'"),
        ({"float": 1.5}, "the number 1.5"),
        ({"array": ["float32", [1 << 62, 4]]}, "has 4 bytes, and its arrays have 73786976294838206464"),
        ({"array": ["float32", [2]]}, "has 4 bytes, and its arrays have 8"),
    ],
)
def test_what_was_never_described_is_refused(described: Any, said: str) -> None:
    with pytest.raises(TransferFailed, match=said):
        sent(
            described, [np.zeros(1, np.float32) if "array" in (described or {}) else np.zeros(0, np.float32)]
        )
