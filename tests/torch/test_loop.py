"""A custom loop that is a worker is the plain loop: the same order, the same bits, the same steps of everything that follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402

from .loops import data, job, network, order, same, train  # noqa: E402

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(
        parameters, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01, amsgrad=True),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_full_batches_have_the_bits_of_the_plain_loop(name: str, num_workers: int) -> None:
    dataset = data(640)
    with job() as made:
        loader = edl.DataLoader(dataset, batch_size=32, num_epochs=10, shuffle=True, num_workers=num_workers)
        model = network()
        optimizer = OPTIMIZERS[name](model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
        model, optimizer, scheduler = edl.elastic(model, optimizer, scheduler=scheduler)
        seen = []
        for epoch in loader.epochs():
            train(model, optimizer, loader)
            scheduler.step()
            seen.append((epoch, made.step, made.epoch))
        assert seen == [(epoch, 20 * (epoch + 1), epoch + 1) for epoch in range(10)]
        made.finish()

    plain = network()
    theirs = OPTIMIZERS[name](plain.parameters())
    follows = torch.optim.lr_scheduler.StepLR(theirs, 3, gamma=0.7)
    places = [records for _, records in order(loader._plan)]
    assert sorted(places[0].tolist() + [one for more in places[1:20] for one in more.tolist()]) == list(
        range(640)
    )
    for epoch in range(10):
        batches = [records.tolist() for records in places[20 * epoch : 20 * (epoch + 1)]]
        train(plain, theirs, torch.utils.data.DataLoader(dataset, batch_sampler=batches))
        follows.step()
    assert same(model, plain)
    assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert scheduler.state_dict() == follows.state_dict()
