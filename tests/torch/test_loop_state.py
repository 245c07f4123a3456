"""What a loop keeps is one state: what is received is what was sent, and one that is another program's changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402

from .images import changed_image  # noqa: E402
from .loops import data, job, network, train  # noqa: E402


class Counting:
    """Keeps something of its own."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": dict(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = Counter(state["seen"])


class Worker:
    """A program that has trained some steps."""

    def __init__(self, steps: int) -> None:
        with job() as made:
            loader = edl.DataLoader(data(), batch_size=32, num_epochs=0, max_step=steps, shuffle=True)
            self.model = network()
            optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            self.losses, self.sums, self.counting = [], torch.zeros(3), Counting()
            self.table = {"best": np.full((2, 2), float("inf")), "bits": torch.ones(2, dtype=torch.bfloat16)}
            made.state.update(
                ema=torch.optim.swa_utils.AveragedModel(self.model), losses=self.losses, sums=self.sums,
                counting=self.counting, table=self.table, note=None,
            )  # fmt: skip
            self.model, self.optimizer, self.scheduler = edl.elastic(
                self.model, optimizer, scheduler=scheduler, scaler=self.scaler
            )
            for features, labels in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(features), labels)
                self.scaler.scale(loss).backward()
                made.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(optimizer)
                self.scaler.update()
                self.scheduler.step()
                made.state["ema"].update_parameters(self.model)
                made.state["note"] = f"step {made.step}"
                self.losses.append(float(loss.detach()))
                self.sums += 1
                self.counting.seen["steps"] += 1
                self.table["best"][0, 0] = made.step
                self.table["bits"] *= 1.5
            self.state, self.values, self.ema = made.passes.state, made.state, made.state["ema"]


def test_a_state_comes_over_whole_and_into_the_objects_that_the_program_holds() -> None:
    donor, other = Worker(7), Worker(2)
    assert donor.state.digest() != other.state.digest()
    image = donor.state.image()
    meta, size = donor.state.describe_image()
    assert (meta, size) == (image.meta, image.body.nbytes)
    parts = [donor.state.image_part(first, min(first + 1000, size)) for first in range(0, size, 1000)]
    assert np.array_equal(np.concatenate(parts), image.body)
    other.state.load(image)
    assert other.state.digest() == donor.state.digest()
    assert other.state.image().meta == image.meta
    assert other.losses == donor.losses
    assert other.values["losses"] is other.losses
    assert other.sums.tolist() == [7, 7, 7]
    assert other.counting.seen == Counter(steps=7)
    assert other.table["best"].tolist() == [[7, float("inf")], [float("inf")] * 2]
    assert torch.equal(other.table["bits"], donor.table["bits"])
    assert other.values["note"] == "step 7"
    assert int(other.ema.n_averaged) == 7
    assert other.scheduler.last_epoch == 7
    assert other.scaler.get_scale() == donor.scaler.get_scale() == 64.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trees: trees["model"].pop("layers.0.weight"), r"layers.0.weight: expected float32 \[16, 4\], received nothing"),
        (lambda trees: trees["optimizers"].append(trees["optimizers"][0]), "it has other optimizers"),
        (lambda trees: trees["optimizers"][0].update(state=3), "the optimizer's is missing"),
        (lambda trees: trees["schedulers"].clear(), "it has other learning-rate schedulers"),
        (lambda trees: trees["schedulers"][0].pop("gamma"), "the state of scheduler 0 has other names"),
        (lambda trees: trees.update(scaler=None), "the scaler's state has other names"),
        (lambda trees: trees.update(marks=[[1, 2]]), "it has other marks"),
        (lambda trees: trees.update(marks=[[1, 2], ["x", 1]]), "its marks are none"),
        (lambda trees: trees["values"].pop("note"), "job.state has the names .*'note', and there it had 'ema'.*"),
        (lambda trees: trees.update(values=3), r"job.state has the names .*, and there it had \(none\)"),
        (lambda trees: trees["values"]["ema"].pop("n_averaged"), r"n_averaged: expected int64 \[\], received nothing"),
        (lambda trees: trees["values"].update(counting={"seen": 3, "x": 1}), r"job.state\['counting'\] does not take what it had there"),
    ],
)  # fmt: skip
def test_another_programs_state_changes_nothing(change: Callable[[dict[str, Any]], None], said: str) -> None:
    image, made = trained()
    digest = made.state.digest()
    with pytest.raises(TransferFailed, match=f"the state does not fit this model and its optimizer: {said}"):
        made.state.load(changed_image(change, image))
    assert made.state.digest() == digest
    assert made.losses
    made.state.load(changed_image(lambda trees: None, image))
    assert len(made.losses) == 3


WORKERS: list[Worker] = []


def trained() -> tuple[StateImage, Worker]:
    """Return the image of one worker, and another one, made once for all cases."""
    if not WORKERS:
        WORKERS.extend((Worker(3), Worker(1)))
    fresh, image = WORKERS[1], WORKERS[0].state.image()
    return image, fresh


def test_without_a_function_that_writes_it_the_result_is_the_weights(tmp_path: Path) -> None:
    for models in ([network()], [network(), torch.nn.Linear(2, 1)]):
        with job() as made:
            loader, path = edl.DataLoader(data(32), batch_size=32), tmp_path / f"{len(models)}.pt"
            optimizer = torch.optim.SGD([one for model in models for one in model.parameters()], 0.1)
            edl.elastic(models, optimizer)
            train(models[0], optimizer, loader)
            made.passes.state.export(str(path))
        found = torch.load(path, weights_only=True)
        for model, weights in zip(models, found if len(models) > 1 else [found], strict=True):
            assert list(weights) == list(model.state_dict())
            assert all(map(torch.equal, weights.values(), model.state_dict().values()))


def test_a_state_of_a_model_file_is_refused() -> None:
    image, made = trained()
    with pytest.raises(TransferFailed, match="the state is not one of a custom training loop of PyTorch"):
        made.state.load(replace(image, meta={"arrays": {"model": {}}}))


def test_what_cannot_be_kept_is_refused() -> None:
    with job() as made:
        loader, model = edl.DataLoader(data(), batch_size=32), network()
        model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1))
        made.state["seen"] = {1, 2}
        with pytest.raises(
            BadModel,
            match=r"the state can't be copied to other workers: it has a builtins.set; .* job.state may have",
        ):
            next(iter(loader))
        made.state["seen"] = None
        with pytest.raises(BadModel, match="a name is a text; got 3"):
            made.state[3] = 1
        train(model, optimizer, loader, lambda: made.state.update(seen=made.step))
        assert dict(made.state) == {"seen": 20}
        with pytest.raises(BadModel, match="it can't be removed once training has begun"):
            del made.state["seen"]
        with pytest.raises(BadModel, match="an object with a state_dict can't be exchanged"):
            made.state["seen"] = network()


def test_an_overflow_is_a_step_without_a_change_and_a_smaller_scale() -> None:
    with job() as made:
        loader = edl.DataLoader(data(96), batch_size=32)
        model, scaler = torch.nn.Linear(4, 3), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1), scaler=scaler)
        for features, labels in loader:
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            loss = scaler.scale(torch.nn.functional.cross_entropy(model(features), labels))
            (loss * float("inf") if made.step == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scaler.update()  # nothing follows twice
            assert torch.equal(before, model.weight) == (made.step == 2)
        assert scaler.get_scale() == 2.0**9


def scaled(*, elastic: bool) -> list[Any]:
    """Train with a scaler and with clipping; return the model's tensors."""
    with job() as made:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        if elastic:
            loader = edl.DataLoader(data(), batch_size=32)
            model, optimizer = edl.elastic(model, optimizer, scaler=scaler)
        else:
            loader = torch.utils.data.DataLoader(data(), batch_size=32)
        for features, labels in loader:
            optimizer.zero_grad()
            scaler.scale(torch.nn.functional.cross_entropy(model(features), labels)).backward()
            if elastic:
                made.clip_grad_norm_(model.parameters(), 0.1)
            else:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        return list(model.state_dict().values())


def test_a_scaled_loop_is_the_plain_scaled_loop() -> None:
    assert all(map(torch.equal, scaled(elastic=True), scaled(elastic=False)))


def test_a_closure_is_called_once() -> None:
    calls: list[str] = []
    with job():
        loader, model = edl.DataLoader(data(64), batch_size=32), network()
        model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1))
        optimizer.register_step_post_hook(lambda *_: calls.append("hook"))

        def closure() -> Any:
            calls.append("closure")
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            return loss

        for features, labels in loader:  # noqa: B007  # the closure's
            assert optimizer.step(closure) > 0
    assert calls == ["closure", "hook"] * 2
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
