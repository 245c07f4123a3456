"""Reading ahead: what comes has its key, whatever is wanted meanwhile, and the same seeds in whichever process it is read."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from elasticdl.data.plan.loopplan import LoopPlan

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402
from elasticdl.torch.source import BatchSource, TensorSource, rows_of  # noqa: E402

from .loops import data, job, network, train  # noqa: E402

PLAN = LoopPlan(40, 4, 0, shuffle=True, seed=3)


class Noisy(torch.utils.data.Dataset):
    """Numbers with noise of all generators, and the process that has read them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        return number, torch.rand(()).item(), random.random(), np.random.rand(), os.getpid()


def source(num_workers: int, dataset: Any = None) -> BatchSource:
    return BatchSource(dataset or Noisy(), PLAN, num_workers, collate_fn=list)


def numbers(epoch: int, batch: int) -> list[int]:
    return PLAN.records_of(epoch, np.arange(4 * batch, 4 * batch + 4)).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_wanted_comes_whatever_was_wanted_before(num_workers: int) -> None:
    made = source(num_workers)
    keys = [(0, task, 0) for task in range(10)]
    made.want(keys)
    seen = {}
    for key in [keys[0], (7, 3, 0), keys[1], keys[5], keys[2]]:
        count, bad, batch = made.get(key)
        seen[key] = batch
        assert (count, bad) == (4, 0)
        assert [one[0] for one in batch] == numbers(*key[:2])
    made.want([(1, task, 0) for task in range(10)])  # nothing of what is on its way
    for task in range(10):
        batch = made.get((1, task, 0))[2]
        assert [one[0] for one in batch] == numbers(1, task)
    made.want(keys)
    assert [one[0] for one in made.get(keys[9])[2]] == numbers(0, 9)
    # a batch that is read again, by whichever process, has the same noise
    again = [made.get(key)[2] for key in (keys[5], keys[0], (7, 3, 0))]
    assert [[one[:4] for one in batch] for batch in again] == [
        [one[:4] for one in seen[key]] for key in (keys[5], keys[0], (7, 3, 0))
    ]
    assert len({one[4] for batch in seen.values() for one in batch} - {os.getpid()}) == num_workers
    made.close()


def test_the_program_and_its_processes_read_with_the_same_noise() -> None:
    read = []
    for num_workers in (0, 1):
        made = source(num_workers)
        made.want([(0, 0, 0), (0, 1, 0)])
        read.append([[one[:4] for one in made.get((0, task, 0))[2]] for task in (0, 1)])
        made.close()
    assert read[0] == read[1]
    noise = [one[1:] for batch in read[0] for one in batch]
    assert len(set(noise)) == len(noise)


def test_few_batches_on_their_way_become_many_again() -> None:
    made = source(2)
    made.want([(0, 0, 0)])
    made.get((0, 0, 0))
    made.want([(0, 1, 0)])
    made.get((0, 1, 0))
    keys = [(2, task, 0) for task in range(10)]
    made.want(keys)
    made.get(keys[0])
    assert len(made._order.asked) >= 3
    made.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_data_set_is_the_programs(num_workers: int) -> None:
    class Failing(Noisy):
        def __getitem__(self, number: int) -> Any:
            if number in numbers(0, 1):
                raise ValueError("mine")
            return number

    made = source(num_workers, Failing())
    made.want([(0, task, 0) for task in range(4)])
    assert made.get((0, 0, 0))[2] == numbers(0, 0)
    with pytest.raises(ValueError, match="mine"):
        made.get((0, 1, 0))
    assert made.get((0, 2, 0))[2] == numbers(0, 2)
    made.close()


def test_a_data_set_that_reads_many_at_once_is_asked_so() -> None:
    class Together(Noisy):
        def __getitems__(self, numbers: list[int]) -> Any:
            return [-one for one in numbers]

    made = source(0, Together())
    made.want([(0, 0, 0)])
    assert made.get((0, 0, 0))[2] == [-one for one in numbers(0, 0)]
    made.close()


def test_dropout_is_of_the_batch_and_not_of_what_was_drawn_before() -> None:
    digests = set()
    for draws in (0, 3):
        with job() as made:
            loader = edl.DataLoader(data(), batch_size=32)
            model = network(dropout=0.3)
            model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1))
            train(model, optimizer, loader, lambda draws=draws: torch.rand(draws))
            digests.add(made.passes.state.digest())
    assert len(digests) == 1


def test_a_process_of_the_data_loader_that_is_killed_is_said() -> None:
    class Killed(Noisy):
        def __getitem__(self, number: int) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    made = source(1, Killed())
    made.want([(0, 0, 0)])
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal|ended without a word"):
        made.get((0, 0, 0))


def test_a_connection_to_one_that_was_killed_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset() -> Iterator[object]:
        raise ConnectionResetError(104, "Connection reset by peer")
        yield

    made = source(1)
    made.want([(0, 0, 0)])
    next(made._order)
    monkeypatch.setattr(made, "_iterator", reset())
    with pytest.raises(RuntimeError, match=r"ended without a word.* use fewer num_workers"):
        made.get((0, 0, 0))


KINDS = ["float32", "int64", "bool", "bfloat16"]


def test_rows_that_are_copied_together_are_what_the_data_loader_makes() -> None:
    tensors = [(torch.arange(40 * 6).reshape(40, 2, 3) % 7).to(getattr(torch, kind)) for kind in KINDS]
    dataset = torch.utils.data.TensorDataset(*tensors, torch.arange(40.0))
    together = TensorSource(rows_of(dataset, 0) or (), PLAN)
    apart = BatchSource(dataset, PLAN, 0)
    for key in [(0, 0, 0), (3, 9, 0)]:
        one, other = together.get(key), apart.get(key)
        assert one[:2] == other[:2] == (4, 0)
        assert type(one[2]) is type(other[2])
        for mine, theirs in zip(one[2], other[2], strict=True):
            assert torch.equal(mine, theirs)
            assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
    one[2][0].fill_(-1)
    assert dataset.tensors[0].min() >= 0, "a program may write into its batch"


def test_what_the_data_loader_may_make_something_else_of_is_left_to_it() -> None:
    class Changed(torch.utils.data.TensorDataset):
        pass

    rows = torch.zeros(4, 2, 3)
    dataset = torch.utils.data.TensorDataset(rows)
    assert rows_of(dataset, 0, collate_fn=None, timeout=0) == (rows,)
    assert rows_of(dataset, 1) is None
    assert rows_of(dataset, 0, collate_fn=list) is None
    assert rows_of(Changed(rows), 0) is None
    for other in (
        rows.transpose(1, 2),
        torch.nn.Parameter(rows),
        rows.to_sparse(),
        torch.zeros(4, requires_grad=True),
    ):
        assert rows_of(torch.utils.data.TensorDataset(other), 0) is None
