"""A loop in several members: each commits the same, whatever part of a step it computes, and what follows a step follows commits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402
from elasticdl.worker.contract.allreduce import ChunkResult  # noqa: E402
from elasticdl.worker.contract.loop import LoopBatch  # noqa: E402
from elasticdl.worker.loop.local import LocalSession  # noqa: E402

from .group import Group, digests  # noqa: E402
from .loops import data, job, network, train  # noqa: E402


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def alone(global_batch_size: int, **settings: Any) -> tuple[str, int, int]:
    """Train in this process; return the digest, the passes and the commits."""
    passes = 0
    with job() as made:
        loader = edl.DataLoader(
            data(320), batch_size=32, num_epochs=3, shuffle=True, global_batch_size=global_batch_size
        )
        model = network(**settings)
        model, optimizer = edl.elastic(model, sgd(model))

        def count() -> None:
            nonlocal passes
            passes += 1
            assert made.committed == (passes % (global_batch_size // 32) == 0)

        train(model, optimizer, loader, count)
        return made.passes.state.digest(), passes, made.step


def test_two_members_commit_what_one_does_with_two_batches_in_a_step() -> None:
    digest, passes, commits = alone(64, dropout=0.2)
    assert (passes, commits) == (30, 15)

    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=3, shuffle=True, global_batch_size=64)
        model = network(dropout=0.2)
        model, optimizer = edl.elastic(model, sgd(model))
        train(model, optimizer, loader, lambda: None)
        assert (made.step, made.epoch) == (15, 3)

    assert digests(Group(2, 2).run(program)) == {digest}


def test_the_step_of_several_batches_is_the_plain_step_on_all_of_their_records() -> None:
    with job():
        loader = edl.DataLoader(data(320), batch_size=16, num_epochs=1, global_batch_size=64)
        model = torch.nn.Linear(4, 3)
        plain = torch.nn.Linear(4, 3)
        plain.load_state_dict(model.state_dict())
        model, optimizer = edl.elastic(model, sgd(model))
        train(model, optimizer, loader)
    train(plain, sgd(plain), torch.utils.data.DataLoader(data(320), batch_size=64))
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-5, atol=1e-6)


def test_a_member_without_a_batch_computes_on_another_one_and_gives_nothing() -> None:
    digest, _, _ = alone(32)
    shapes: list[list[int]] = [[], []]

    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=3, shuffle=True, global_batch_size=32)
        model = network()
        model, optimizer = edl.elastic(model, sgd(model))
        for features, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            made.report(loss)
            optimizer.step()
            assert made.committed
            shapes[rank].append(len(features))
        assert made.step == 30

    assert digests(Group(2, 1).run(program)) == {digest}
    assert shapes == [[32] * 30] * 2


def test_schedulers_step_once_for_each_commit_or_each_epoch() -> None:
    rates: list[list[float]] = [[], []]

    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=3, global_batch_size=96)
        model = network()
        optimizer = sgd(model)
        each = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9)
        ends = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.5)
        model, optimizer, (each, ends) = edl.elastic(model, optimizer, scheduler=[each, ends])
        ends.step()  # no epoch has ended
        for _ in loader.epochs():
            train(model, optimizer, loader, lambda: [each.step(), each.step()])
            ends.step()
            ends.step()
            each.step()
            rates[rank].append(optimizer.param_groups[0]["lr"])

    # three batches in a step, and the last one of an epoch has one: the first member has two passes in most steps
    assert len(digests(Group(2, 3).run(program))) == 1
    expected = [0.1 * 0.9 ** (4 * epoch) * 0.5**epoch for epoch in (1, 2, 3)]
    assert rates == [pytest.approx(expected)] * 2


def test_clipping_is_of_the_steps_gradient() -> None:
    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=1)
        model = torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        for features, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            made.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()

    states = Group(2, 2).run(program)
    assert len(digests(states)) == 1
    with job():  # the same weights before
        plain = torch.nn.Linear(4, 3)
    optimizer = sgd(plain)
    for features, labels in torch.utils.data.DataLoader(data(320), batch_size=64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(features), labels).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        optimizer.step()
    torch.testing.assert_close(states[0]._parameters[0].data, plain.weight.data, rtol=1e-5, atol=1e-6)


def test_skipped_and_weighed_batches() -> None:
    """The first batch of each step is left out, and counts as trained; the weights of the others are settled by the program."""

    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=1)
        model = torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        for features, labels in loader:
            if rank == 0:
                made.skip()
                assert made.committed
                continue
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            made.set_weight(64 if rank == 1 else 32)
            optimizer.step()

    states = Group(3, 3).run(program)
    assert len(digests(states)) == 1
    with job():
        plain = torch.nn.Linear(4, 3)
    optimizer, batches = sgd(plain), list(torch.utils.data.DataLoader(data(320), batch_size=32))
    for first in range(0, 10, 3):
        losses = [torch.nn.functional.cross_entropy(plain(x), y) for x, y in batches[first : first + 3]]
        if len(losses) > 1:
            optimizer.zero_grad()
            ((2 * losses[1] + losses[2]) / 3).backward()
            optimizer.step()
    torch.testing.assert_close(states[0]._parameters[0].data, plain.weight.data, rtol=1e-5, atol=1e-6)


def test_several_optimizers_step_together() -> None:
    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=2)
        model = network()
        first = torch.optim.SGD(model.layers[0].parameters(), 0.1)
        rest = torch.optim.AdamW(model.layers[1:].parameters(), 0.01)
        model, (first, rest) = edl.elastic(model, [first, rest])
        for features, labels in loader:
            first.zero_grad()
            rest.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            first.step()
            assert not made.committed
            rest.step()
            assert made.committed
        assert made.step == 10

    states = Group(2, 2).run(program)
    assert len(digests(states)) == 1
    assert [len(one.state_dict()["state"]) for one in states[0]._trained.optimizers] == [0, 4]


def test_a_gan_alternates_by_the_jobs_step() -> None:
    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=2)
        maker, judge = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
        (maker, judge), (of_maker, of_judge) = edl.elastic(
            [maker, judge],
            [torch.optim.Adam(maker.parameters(), 0.01), torch.optim.Adam(judge.parameters(), 0.01)],
            alternate=True,
        )
        for real, _ in loader:
            before = [one.weight.detach().clone() for one in (maker, judge)]
            made_up = maker(torch.randn(len(real), 2))
            judges = made.step % 2 == 0
            if judges:
                of_judge.zero_grad()
                (judge(made_up).mean() - judge(real).mean()).backward()
                of_judge.step()
            else:
                of_maker.zero_grad()
                (-judge(made_up).mean()).backward()
                of_maker.step()
            changed = [
                not torch.equal(one.weight, was) for one, was in zip((maker, judge), before, strict=True)
            ]
            assert changed == [not judges, judges]

    assert len(digests(Group(2, 2).run(program))) == 1


def test_a_member_that_takes_the_state_of_another_one_continues_as_it_does() -> None:
    """What follows a step is in the image that is taken before the next one."""

    def program(made: Any, rank: int) -> None:
        loader = edl.DataLoader(data(320), batch_size=32, num_epochs=2, shuffle=True)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        average = torch.optim.swa_utils.AveragedModel(model)
        made.state["average"], made.state["losses"] = average, []
        model, optimizer, scheduler = edl.elastic(model, optimizer, scheduler=scheduler)
        for features, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            if made.committed:
                scheduler.step()
                average.update_parameters(model)
                made.state["losses"].append(made.step)

    group = Group(2, 2)
    states = group.run(program)
    assert len(digests(states)) == 1
    assert len(group.images) == 11
    last = group.images[-1]
    states[1].load(group.images[3])
    assert states[1]._values["losses"] == [1, 2, 3]
    assert states[1].digest() != states[0].digest()
    assert [mark.step for mark in states[1]._trained.marks] == [3, 0]
    states[1].load(last)
    assert digests(states) == {states[0].digest()}


class Scripted(LocalSession):
    """Gives the batches of a script, as where a worker receives a state of later."""

    def __init__(self, batches: list[LoopBatch]) -> None:
        super().__init__()
        self.batches = batches

    @property
    def epoch(self) -> int:
        return self.batches[0].epoch if self.batches else 9

    def next(self) -> LoopBatch | None:
        return self.batches.pop(0) if self.batches else None

    def step(self, result: ChunkResult) -> bool:
        return True


def test_epochs_are_those_of_the_batches_whatever_is_left_out() -> None:
    batch = data(8).tensors

    def at(epoch: int, step: int) -> LoopBatch:
        return LoopBatch(epoch, step, 0, 8, batch)

    class Jumping(Scripted):
        @property
        def epoch(self) -> int:
            """What is known after a step: the state of epoch 5 comes with the next batch."""
            return min(super().epoch, 3)

    for kind, script in (
        (Scripted, [at(2, 5), at(2, 6), at(5, 9)]),
        (Jumping, [at(3, 5), at(3, 6), at(5, 9)]),
    ):
        with job(kind(list(script))):
            loader, model = edl.DataLoader(data(8), batch_size=8, num_epochs=9), network()
            model, optimizer = edl.elastic(model, sgd(model))
            seen = []
            for epoch in loader.epochs():
                train(model, optimizer, loader, lambda: seen.append(epoch))  # noqa: B023
            assert seen == [one.epoch for one in script]
