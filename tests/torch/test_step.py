"""A step is the plain loop's: the bits of it with one full chunk, the same within rounding with several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.errors import BadModel
from elasticdl.worker.contract.allreduce import StepLogs

from . import FULL, adapter_of, commit, made_of, records

torch = pytest.importorskip("torch", reason="make setup-torch")

STEPS = 20
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(
        parameters, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01, amsgrad=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, momentum=0.5),
}


class Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(1, 6, 3, padding=1),
            torch.nn.BatchNorm1d(6),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.Linear(24, 3),
        )

    def forward(self, rows: Any) -> Any:
        return self.layers(rows.unsqueeze(1))


def dense() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def plain(made: Any, user: Any, epochs_of: int = 0) -> Any:
    """Return a copy of an adapter's model, and what trains it as the loop of any tutorial does."""
    model = user.model()
    model.load_state_dict(made.model.state_dict())
    optimizer = user.optimizer(model.parameters())
    scheduler = user.lr_scheduler(optimizer) if user.lr_scheduler else None

    def step(raw: Any) -> None:
        features, labels = user.feed(raw, "training", None)
        optimizer.zero_grad()
        user.loss(labels, model(features)).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()

    return model, step


def same(one: Any, other: Any) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_full_chunk_is_the_plain_loops_step_bit_for_bit(name: str) -> None:
    user = made_of(
        Convolution,
        OPTIMIZERS[name],
        lr_scheduler=lambda one: torch.optim.lr_scheduler.OneCycleLR(
            one, 0.1, total_steps=50, cycle_momentum=False
        ),
    )
    made = adapter_of(user)
    model, step = plain(made, user)
    for number in range(1, STEPS + 1):
        raw = records(FULL, number)
        commit([made], [raw], number)
        step(raw)
        assert same(made.model, model), f"step {number}"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_commit_is_the_plain_step_on_all_records_together(name: str) -> None:
    user = made_of(dense, OPTIMIZERS[name])
    workers = [adapter_of(user), adapter_of(user)]
    model, step = plain(workers[0], user)
    for number in range(1, STEPS + 1):
        chunks = [records(count, 10 * number + count) for count in (FULL, FULL, 5)]
        commit(workers, chunks, number)
        step([record for chunk in chunks for record in chunk])
        for ours, theirs in zip(workers[1].model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_double_precision_stays_double() -> None:
    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = torch.tensor([[float(value) for value in record] for record in raw], dtype=torch.float64)
        return rows[:, :4], rows[:, 4].long()

    user = made_of(lambda: dense().double(), feed=feed)
    workers = [adapter_of(user), adapter_of(user)]
    model, step = plain(workers[0], user)
    chunks = [records(FULL, 1), records(3, 2)]
    assert commit(workers, chunks, 1).dtype == "float64"
    step(chunks[0] + chunks[1])
    for ours, theirs in zip(workers[1].model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_autocast_and_parameters_of_half_the_bits_give_the_plain_loops_bits() -> None:
    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 3, dtype=torch.bfloat16)

        def forward(self, rows: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return self.last(torch.relu(self.first(rows))).float()

    user = made_of(Halves)
    made, healed = adapter_of(user), adapter_of(user, seed=8)
    model, step = plain(made, user)
    for number in (1, 2, 3):
        raw = records(FULL, number)
        commit([made], [raw], number)
        step(raw)
        assert same(made.model, model)
    healed.load(made.image())
    assert same(healed.model, model)


def test_a_parameter_without_a_gradient_in_a_step_neither_decays_nor_moves() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = (
                torch.nn.Linear(4, 8),
                torch.nn.ModuleList([torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)]),
            )
            self.never = torch.nn.Parameter(torch.ones(2))

        def forward(self, rows: Any) -> Any:
            return self.heads[int(rows[0, 0] > 0)](torch.relu(self.body(rows)))

    user = made_of(Heads, OPTIMIZERS["SGD"])
    made = adapter_of(user)
    model, step = plain(made, user)
    for number in range(1, 9):
        raw = records(FULL, number)
        raw[0][0] = "1.0" if number % 3 else "-1.0"
        commit([made], [raw], number)
        step(raw)
        assert same(made.model, model)
    assert made.model.never.tolist() == [1.0, 1.0]


class Counting(torch.nn.Module):
    """Counts by `by` in each forward pass."""

    def __init__(self, by: Callable[[Any], Any], buffer: Any) -> None:
        super().__init__()
        self.last, self.by = torch.nn.Linear(4, 3), by
        self.register_buffer("counted", buffer)

    def forward(self, rows: Any) -> Any:
        if self.training:
            self.counted += self.by(rows)
        return self.last(rows)


def test_whole_numbers_count_steps_and_not_chunks_and_infinite_ones_stay() -> None:
    def masked() -> Any:
        made = Counting(lambda rows: 1, torch.tensor(0))
        made.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        return made

    workers = [adapter_of(made_of(masked)) for _ in range(2)]
    for number in (1, 2, 3):
        commit(workers, [records(FULL, number), records(3), records(FULL, 2 * number)], number)
    assert [one.model.counted.item() for one in workers] == [3, 3]
    for made in workers:
        assert made.model.mask.tolist() == [0.0, -torch.inf]
        made.compute(made.convert(records(FULL)), 4, 0)
        assert made.take(alone=True), "finite"


def test_buffers_that_workers_cannot_agree_on_are_refused() -> None:
    made = adapter_of(made_of(lambda: Counting(lambda rows: (rows[:, 0] > 0).sum(), torch.tensor(0))))
    with pytest.raises(
        BadModel,
        match=r"m.py: training changes the buffer 'counted', .*int64.* by another number in each chunk",
    ):
        commit([made], [[["1.0"] * 5] * FULL, [["1.0"] * 5] * (FULL - 1) + [["-1.0"] * 4 + ["1.0"]]], 1)
    large = made_of(lambda: Counting(lambda rows: 1.0, torch.zeros(20_000)))
    with pytest.raises(
        BadModel, match="training changes the buffer 'counted' of 80,000 bytes; those of more than 64 KiB"
    ):
        adapter_of(large)


def test_a_scheduler_of_epochs_steps_at_their_ends() -> None:
    user = made_of(
        dense, lr_scheduler=lambda one: (torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.5), "epoch")
    )
    made, joiner = adapter_of(user), adapter_of(user)
    rates = []
    for number in range(1, 9):
        commit([made], [records(FULL, number)], number)
        made.logs(StepLogs(number, 0, 0.5, number % 2 == 0, 0.5 if number % 2 == 0 else None))
        rates.append(made.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025])
    joiner.load(made.image())
    assert joiner.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert joiner.digest() == made.digest()
    for number in (9, 10, 11, 12):
        commit([made, joiner], [records(FULL, number), records(FULL, number + 50)], number)
        for one in (made, joiner):
            one.logs(StepLogs(number, 0, 0.5, number % 2 == 0, 0.5 if number % 2 == 0 else None))
    assert (
        joiner.optimizer.param_groups[0]["lr"]
        == made.optimizer.param_groups[0]["lr"]
        == pytest.approx(0.0125)
    )
