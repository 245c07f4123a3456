"""What a loop keeps in `job.state`: copied, put back in place, and refused where it does not fit."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadInput, TransferFailed
from elasticdl.worker.loop.sums import SumState
from elasticdl.worker.loop.values import Values

Pair = namedtuple("Pair", "left right")


class Variable:
    """One that is assigned, as those of TensorFlow are."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.value

    def assign(self, value: Any) -> None:
        self.value = np.array(value)


class Counter:
    """What has a state_dict."""

    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "halves": np.array([self.count / 2])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def frozen(value: list[float]) -> Any:
    """Return an array that can't be written into, as those of JAX."""
    array = np.array(value)
    array.flags.writeable = False
    return array


def made(factor: int) -> tuple[Values, dict[str, Any]]:
    """Return the state of a program, and its own names for some of that."""
    names = {
        "array": np.full((2, 3), 1.5 * factor),
        "variable": Variable([factor, 2.0]),
        "counter": Counter(factor),
    }
    values = Values()
    values["weights"] = names["array"]
    values["mixed"] = {
        "layers": [names["variable"], (frozen([1.0 * factor]), -0.0)],
        "pair": Pair(factor, "text"),
        "none": None,
    }
    values["counter"] = names["counter"]
    values["empty"] = np.zeros((0, 4), np.float32)
    return values, names


def test_values_are_put_back_in_place() -> None:
    source, _ = made(3)
    target, names = made(1)
    assert source.digest() != target.digest()
    target.load(source.image())
    assert target.digest() == source.digest()
    assert names["array"].tolist() == [[4.5] * 3] * 2
    assert names["variable"].value.tolist() == [3, 2.0]
    assert names["counter"].count == 3
    pair = target["mixed"]["pair"]
    assert pair == Pair(3, "text")
    assert isinstance(pair, Pair)
    assert target["mixed"]["layers"][1][0].tolist() == [3.0]


def test_the_order_of_names_does_not_count() -> None:
    first, second = Values(), Values()
    first["w"], first["t"] = {"a": 1, "b": np.ones(2)}, 5
    second["t"], second["w"] = 5, {"b": np.ones(2), "a": 1}
    assert first.digest() == second.digest()
    second["w"]["a"] = 2
    assert first.digest() != second.digest()
    second.load(first.image())
    assert first.digest() == second.digest()


def test_values_that_came_later_are_there_too() -> None:
    source, _ = made(3)
    source["found later"] = [1, 2]
    target, _ = made(1)
    target.load(source.image())
    assert target["found later"] == [1, 2]


@pytest.mark.parametrize(("mine", "theirs"), [([], [1, 0.5, ["a"]]), ([3, 4, 5], [1])])
def test_lists_of_numbers_may_have_grown(mine: list[Any], theirs: list[Any]) -> None:
    source, target = Values(), Values()
    source["history"], target["history"] = theirs, mine
    target.load(source.image())
    assert mine == theirs
    assert target["history"] is mine
    assert target.digest() == source.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.__delitem__("counter"), "no 'counter'"),
        (
            lambda values: values.__setitem__("weights", np.zeros((3, 2))),
            r"'weights' is float64 \(2, 3\) here",
        ),
        (lambda values: values.__setitem__("weights", np.zeros((2, 3), np.float32)), "float32"),
        (lambda values: values.__setitem__("weights", 1), "and int there"),
        (lambda values: values["mixed"].pop("none"), "'mixed' has other entries"),
        (lambda values: values["mixed"]["layers"].pop(), "'mixed/layers' is a list of another length"),
        (lambda values: values["mixed"].update(layers=3), "'mixed/layers' is a list here, and int there"),
    ],
)
def test_what_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    source, target = made(3)[0], made(1)[0]
    before = target.digest()
    change(source)
    with pytest.raises(TransferFailed, match=message):
        target.load(source.image())
    assert target.digest() == before


def test_another_kind_of_state_is_refused() -> None:
    with pytest.raises(TransferFailed):
        made(1)[0].load(StateImage({"variables": []}, np.zeros(0, np.uint8)))


@pytest.mark.parametrize(
    ("value", "message"), [(object(), "object"), ({1.5: 2}, "the key"), ({"a": {1, 2}}, "set")]
)
def test_what_can_not_be_kept_is_refused(value: Any, message: str) -> None:
    values = Values()
    with pytest.raises(BadInput, match=rf"job.state\['x'\]: .*{message}"):
        values["x"] = value
    with pytest.raises(BadInput, match="names are strings"):
        values[1] = 1  # type: ignore[index]
    assert len(values) == 0


def test_parts_of_an_image_are_those_of_the_whole() -> None:
    values, _ = made(2)
    state = SumState(np.zeros(1), 1, values)
    whole = values.image()
    meta, size = state.describe_image()
    assert (meta, size) == (whole.meta, whole.body.nbytes)
    for step in (1, 7, 64, size):
        parts = [state.image_part(first, min(first + step, size)) for first in range(0, size, step)]
        assert np.concatenate(parts).tobytes() == whole.body.tobytes()
