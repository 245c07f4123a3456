"""A worker's own copy of the dense variables: when the servers are asked, and what is made of what comes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from elasticdl.catalog.catalog import Catalog, Rule, Variable
from elasticdl.worker.ps.localcopy import LocalCopy, Weights

RATE = 0.5
KERNEL, MEAN = 0, 1


def copy_of(every: int, momentum: float = 0.0) -> LocalCopy:
    rule = Rule("sgd", {"momentum": momentum, "nesterov": 0.0})
    variables = [Variable("kernel", (2,)), Variable("mean", (), adds=True)]
    return LocalCopy(Catalog(0, [], variables, rule).core(), 2, every)


def come(copy: LocalCopy, kernel: Sequence[float], mean: float) -> None:
    copy.take(KERNEL, np.array(kernel, np.float32))
    copy.take(MEAN, np.array([mean], np.float32))


def slopes(kernel: Sequence[float], mean: float) -> list[Weights]:
    return [np.array(kernel, np.float32), np.array([mean], np.float32)]


def own(copy: LocalCopy) -> list[list[float]]:
    return [weights.tolist() for _, weights in copy.weights()]


def pulled(copy: LocalCopy) -> list[list[float]]:
    return [weights.tolist() for _, weights in copy.pulled()]


@pytest.mark.parametrize("every", [2, 3, 8])
def test_variables_are_asked_for_with_every_so_manieth_chunk(every: int) -> None:
    copy = copy_of(every)
    asked = [copy.ask(0) for _ in range(30)]
    assert asked == [[] if chunk % every else [KERNEL, MEAN] for chunk in range(30)]


def test_after_a_roll_back_they_are_asked_for_and_counted_from_there() -> None:
    copy = copy_of(3)
    asked = [bool(copy.ask(roll_back)) for roll_back in (0, 0, 1, 1, 1, 1, 3)]
    assert asked == [True, False, True, False, False, True, True]


def test_its_own_gradients_change_the_copy_and_not_what_came() -> None:
    copy = copy_of(4)
    assert own(copy) == []
    copy.ask(0)
    come(copy, [1, 2], 3)
    copy.change(slopes([2, -2], 0.25), RATE)
    copy.change(slopes([0, 4], 0.25), RATE)
    assert own(copy) == [[0, 1], [3.5]]
    assert pulled(copy) == [[1, 2], [3]]


def test_what_it_has_learned_since_it_asked_is_added_to_what_comes() -> None:
    copy = copy_of(2)
    copy.ask(0)
    come(copy, [1, 2], 3)
    copy.change(
        slopes([2, 2], 1), RATE
    )  # a chunk that was pushed before the servers are asked again: it is in what comes
    assert not copy.ask(0)
    copy.change(slopes([2, 2], 1), RATE)
    assert copy.ask(0)
    copy.change(slopes([-2, 4], 1), RATE)  # one that is on its way
    come(copy, [10, 20], 30)
    assert own(copy) == [[11, 18], [31]]
    assert pulled(copy) == [[10, 20], [30]]


def test_one_that_is_alone_asks_and_gets_what_it_had() -> None:
    """Its servers have each of its chunks but the one that is on its way."""
    copy, computed, on_its_way = copy_of(3), 0.0, 0.0
    for chunk in range(20):
        asked, answer = copy.ask(0), computed
        if chunk:  # the one before is computed meanwhile
            on_its_way = RATE * (chunk % 5)
            copy.change(slopes([chunk % 5, 0], 0), RATE)
        if asked:
            come(copy, [answer, 0], 0)
        computed -= on_its_way
        assert own(copy)[KERNEL] == [computed, 0]


def test_a_variable_that_does_not_come_again_stays_as_the_worker_has_it() -> None:
    copy = copy_of(2)
    copy.ask(0)
    come(copy, [1, 2], 3)
    copy.change(slopes([2, 2], 1), RATE)
    copy.ask(0)
    copy.ask(0)
    copy.take(MEAN, np.array([7], np.float32))
    assert own(copy) == [[0, 1], [7]]
    assert pulled(copy) == [[1, 2], [7]]


def test_what_comes_without_having_been_asked_for_here_is_taken_as_it_is() -> None:
    """The result is written of what comes last."""
    copy = copy_of(2)
    copy.ask(0)
    come(copy, [1, 2], 3)
    copy.change(slopes([2, 2], 1), RATE)
    come(copy, [5, 6], 7)
    assert own(copy) == pulled(copy) == [[5, 6], [7]]


def test_the_optimizer_goes_on_when_weights_come() -> None:
    copy = copy_of(2, momentum=0.5)
    copy.ask(0)
    come(copy, [0, 0], 0)
    copy.change(slopes([2, 4], 0), RATE)
    copy.ask(0)
    copy.ask(0)
    come(copy, [10, 10], 0)
    copy.change(slopes([0, 0], 0), RATE)
    assert own(copy)[KERNEL] == [9.5, 9.0]


def test_weights_of_another_number_are_refused() -> None:
    copy = copy_of(2)
    copy.ask(0)
    with pytest.raises(ValueError, match="variable kernel has 2 numbers, received 3"):
        come(copy, [1, 2, 3], 0)
    with pytest.raises(ValueError, match="variable kernel has 2 numbers, received 1"):
        copy.change(slopes([1], 0), RATE)


def test_all_are_asked_for_at_once_if_servers_have_lost_something() -> None:
    copy = copy_of(3)
    asked = [bool(copy.ask(0, at_once)) for at_once in (False, False, True, False, False, False)]
    assert asked == [True, False, True, False, False, True]
