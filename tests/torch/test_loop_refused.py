"""What a loop can't do is refused where it is tried, with what to do instead."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import BadData, BadModel, BadSetting

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402

from .loops import data, job, network  # noqa: E402


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1)


def refused(text: str, kind: type[Exception] = BadModel) -> Any:
    return pytest.raises(kind, match=re.escape(text))


def loader_of(**settings: Any) -> Any:
    return edl.DataLoader(data(64), batch_size=8, **settings)


# ------------------------------------------------------------------ what is trained


def grouped() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SyncBatchNorm(4))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: edl.elastic(grouped(), sgd(network())), "the model has a SyncBatchNorm, which wants a process group"),
        (lambda: edl.elastic(model := network(), torch.optim.LBFGS(model.parameters())), "LBFGS can't be used"),
        (lambda: edl.elastic(model := network(), torch.optim.SparseAdam(model.parameters())), "SparseAdam can't be used"),
        (lambda: edl.elastic(network(), sgd(network())), "an optimizer has a parameter that no model has"),
        (lambda: edl.elastic(model := network(), [sgd(model), sgd(model)]), "two optimizers have the same parameter"),
        (lambda: edl.elastic(model := torch.nn.LazyLinear(3), torch.optim.SGD(model.parameters())), "parameters without a shape"),
        (lambda: edl.elastic(3, sgd(network())), "expected a torch.nn.Module, or a list of them; got a int"),
        (lambda: edl.elastic(network(), None), "expected a torch.optim.Optimizer, or a list of them; got a NoneType"),
        (lambda: edl.elastic(model := network(), sgd(model), averaged=["x"]), "the model has no buffer 'x'; it has layers.1.num_batch"),
        (lambda: edl.elastic(model := network(), scheduled(sgd(model))), "the optimizer has a learning-rate scheduler; give it, too"),
        (lambda: edl.elastic(model := network(), sgd(model), scheduler=3), "a int is not a scheduler of an optimizer that is given"),
        (lambda: [edl.elastic(model := network(), sgd(model)) for _ in range(2)], "edl.elastic() is called twice"),
        (lambda: edl.elastic(model := network(), sgd(model))[1].add_param_group({}), "add_param_group() is called after edl.elastic()"),
    ],
)  # fmt: skip
def test_what_is_trained(make: Callable[[], Any], text: str) -> None:
    with job(), refused(text):
        make()


def scheduled(optimizer: Any) -> Any:
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return optimizer


# ------------------------------------------------------------------ what it is trained on


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: edl.DataLoader(Stream()), BadData, "an IterableDataset can't be dealt out by numbers"),
        (lambda: edl.DataLoader(iter("x")), BadData, "has no length; use a map-style data set"),
        (lambda: edl.DataLoader([]), BadData, "the data set has no record"),
        (lambda: edl.DataLoader([1, 2], 3, drop_last=True), BadData, "no record in a full batch of 3; leave drop_last out"),
        (lambda: loader_of(sampler=[1]), BadSetting, "sampler and batch_sampler can't be used"),
        (lambda: loader_of(generator=torch.Generator()), BadSetting, "generator can't be used, since all workers have one order"),
        (lambda: loader_of(batch_sampler=[[1]]), BadSetting, "sampler and batch_sampler can't be used"),
        (lambda: loader_of(global_batch_size=12), BadSetting, "no multiple of 8"),
        (lambda: loader_of(num_epochs=-1), BadSetting, "num_epochs is a whole number from 0 on; got -1"),
        (lambda: edl.DataLoader(data(), 2.5), BadSetting, "batch_size is a whole number from 1 on; got 2.5"),
        (lambda: [loader_of(), loader_of()], BadModel, "there are two of edl.DataLoader"),
    ],
)  # fmt: skip
def test_what_it_is_trained_on(make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with job(), refused(text, kind):
        make()


def test_drop_last_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    with job():
        loader = edl.DataLoader(data(70), batch_size=8, drop_last=True)
        assert len(loader) == 8
    assert "the last 6 of 70 records are not trained" in capsys.readouterr().out


# ------------------------------------------------------------------ the body


def backward(model: Any, batch: Any) -> None:
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()


def nothing(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    backward(model, batch)


def twice(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    backward(model, batch)
    optimizer.step()
    optimizer.step()


def clipped(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    backward(model, batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.001)
    optimizer.step()


def exchanged(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    backward(model, batch)
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 2
    optimizer.step()


def new_name(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    made.state["x"] = 1


def weight(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    made.set_weight(-1)


def reported_late(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    backward(model, batch)
    optimizer.step()
    made.report(1.0)


def several_losses(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    made.report(torch.ones(8))


def no_loss(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    made.report("low")


def not_finite(made: Any, model: Any, optimizer: Any, batch: Any) -> None:
    (model(batch[0]).sum() * float("inf")).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (nothing, "call optimizer.step() once for each batch. job.skip() leaves one out; DataLoader(global_batch_size=…) makes"),
        (twice, "optimizer.step() is called where there is no batch"),
        (clipped, "job.clip_grad_norm_(parameters, max_norm) clips those of the step"),
        (exchanged, "gradients were changed between backward() and optimizer.step()"),
        (new_name, "job.state['x']: it is new, and training has begun"),
        (reported_late, "job.report() is called where there is no batch"),
        (several_losses, "job.report(): expected the mean loss of the batch, one number; got a tensor of shape [8]"),
        (no_loss, "job.report(): expected the mean loss of the batch, one number; got 'low'"),
        (weight, "job.set_weight(-1): a weight is a number from 0 on"),
        (not_finite, "the gradient of step 1 is not finite"),
    ],
)  # fmt: skip
def test_the_body(body: Callable[..., None], text: str) -> None:
    with job() as made:
        loader, model = loader_of(), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        with refused(text):
            for batch in loader:
                optimizer.zero_grad()
                body(made, model, optimizer, batch)


def test_an_optimizer_that_the_job_does_not_know() -> None:
    with job():
        loader, model, other = loader_of(), torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        another = sgd(other)
        model, optimizer = edl.elastic(model, sgd(model))
        passed = 0
        with refused("an optimizer that edl.elastic() was not given steps for each batch"):
            for batch in loader:
                backward(model, batch)
                backward(other, batch)
                optimizer.step()
                another.step()
                passed += 1
        assert passed == 1


def test_optimizers_of_inner_loops_and_after_training_are_nobodys_business() -> None:
    with job():
        loader, model, other = loader_of(), torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        another = None
        for batch in loader:
            another = sgd(other)
            for _ in range(2):
                backward(other, batch)
                another.step()
            backward(model, batch)
            optimizer.step()
        assert another is not None
        another.step()


def test_a_backward_between_the_steps_of_two_optimizers() -> None:
    with job():
        loader, model = loader_of(), network()
        first, last = sgd(model.layers[0]), sgd(model.layers[-1])
        edl.elastic(model, [first, last])
        batches = iter(loader)
        batch = next(batches)
        backward(model, batch)
        first.step()
        with refused("an optimizer steps twice in one pass"):
            first.step()
        backward(model, batch)
        with refused("edl.elastic(alternate=True), and one optimizer for each batch, chosen by job.step"):
            last.step()


def test_sparse_gradients_and_buffers() -> None:
    class Looking(torch.nn.Module):
        def __init__(self, sparse: bool = False, counts: bool = False) -> None:
            super().__init__()
            self.rows = torch.nn.Embedding(5, 3, sparse=sparse)
            self.register_buffer("seen", torch.zeros(20_000))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.counts, self.called = counts, 0

        def forward(self, features: Any) -> Any:
            self.called += 1
            if self.counts:
                self.calls += self.called
            elif not self.rows.sparse:
                self.seen += 1
            return self.rows(features[:, 0].long() % 5)

    for settings, text in (
        ({"sparse": True}, "is sparse; leave sparse=True out"),
        ({"counts": True}, "the buffer 'calls', which is of type torch.int64, by another number in each chunk"),
        ({}, "'seen' of 80,000 bytes; those of more than 64 KiB have to stay as they are: name it in edl.elastic(averaged=[…])"),
    ):  # fmt: skip
        with job() as made:
            loader, model = loader_of(global_batch_size=16), Looking(**settings)
            model, optimizer = edl.elastic(model, sgd(model))
            with refused(text):
                for batch in loader:
                    backward(model, batch)
                    optimizer.step()
                    assert made.step < 2
    with job():
        loader, model = loader_of(), Looking()
        model, optimizer = edl.elastic(model, sgd(model), averaged=["seen"])
        for batch in loader:
            backward(model, batch)
            optimizer.step()
        assert model.seen.unique().tolist() == [8]


def test_unscaling() -> None:
    with job():
        loader, model, scaler = loader_of(), torch.nn.Linear(4, 3), torch.amp.GradScaler("cpu")
        model, optimizer = edl.elastic(model, sgd(model), scaler=scaler)
        for batch in loader:
            scaler.scale(torch.nn.functional.cross_entropy(model(batch[0]), batch[1])).backward()
            with refused(
                "leave it out. job.clip_grad_norm_(parameters, max_norm) clips the step's gradients, unscaled"
            ):
                scaler.unscale_(optimizer)
            break


# ------------------------------------------------------------------ the order of calls


def test_calls_that_come_too_early_or_too_late() -> None:
    for call, text in (
        (lambda: edl.DataLoader(data()), "edl.DataLoader: call job = edl.init() before it"),
        (lambda: edl.elastic(network(), None), "edl.elastic: call job = edl.init() before it"),
        (lambda: edl.init(seed=1.5), "edl.init: seed is a whole number; got 1.5"),
    ):
        with refused(text, BadSetting):
            call()
    with job() as made:
        with refused("edl.init: it was called before", BadSetting):
            edl.init()
        loader, model = loader_of(), network()
        with refused("training begins, and edl.elastic(model, optimizer) was not called"):
            next(iter(loader))
        model, optimizer = edl.elastic(model, sgd(model))
        scheduled(optimizer)
        with refused("the optimizer has a learning-rate scheduler; give it, too"):
            next(iter(loader))
        with refused("optimizer.step() is called where there is no batch"):
            optimizer.step()
        with refused("job.skip() is called where there is no batch"):
            made.skip()


def test_a_scheduler_without_marks_is_missed_before_the_first_batch() -> None:
    """Workers that join would not get what it has counted."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    for names_it in (True, False):
        with job():
            loader, model = loader_of(), network()
            optimizer = sgd(model)
            scheduler = plateau(optimizer)
            edl.elastic(model, optimizer, scheduler=scheduler if names_it else None)
            if names_it:
                next(iter(loader))
                continue
            with refused("the optimizer has a learning-rate scheduler; give it, too"):
                next(iter(loader))


def test_loops_that_are_left_or_repeated() -> None:
    def trained(batch: Any) -> None:
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()

    with job() as made:
        loader, model = loader_of(num_epochs=2), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        with refused("the loop over the loader was left before its end (break)"):
            for _ in loader.epochs():
                for batch in loader:
                    trained(batch)
                    break
        with refused("the program ended after step 1, before its data did"):
            made.finish()
    with job():
        loader, model = loader_of(num_epochs=2), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        with refused("the body of epoch 0 did not loop over the loader"):
            for _ in loader.epochs():
                pass
    with job() as made:
        loader, model = loader_of(num_epochs=2), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        for batch in loader:
            trained(batch)
        with refused("loop over the epochs with `for epoch in loader.epochs()`"):
            next(iter(loader))
        made.finish()


def test_stop_ends_the_loops() -> None:
    with job() as made:
        loader, model = loader_of(num_epochs=0), torch.nn.Linear(4, 3)
        model, optimizer = edl.elastic(model, sgd(model))
        seen = []
        for epoch in loader.epochs():
            for batch in loader:
                optimizer.zero_grad()
                backward(model, batch)
                optimizer.step()
                if made.step == 12:
                    made.stop("enough")
            seen.append(epoch)
        assert (made.step, seen) == (12, [0, 1])
        made.finish()


def test_a_result_that_is_no_function_is_refused_before_training() -> None:
    with (
        job() as made,
        refused("job.result: expected a function that writes to the path that it is given; got a dict"),
    ):
        made.result({"weight": 1}, "made.pt")


PROGRAM = """
import torch, elasticdl.torch as edl
job = edl.init()
loader = edl.DataLoader([torch.ones(2)] * 8, batch_size=2)
model = torch.nn.Linear(2, 1)
model, optimizer = edl.elastic(model, torch.optim.SGD(model.parameters(), 0.1))
job.result(lambda path: torch.save(model.state_dict(), path), path="made.pt")
for x in loader:
    model(x).sum().backward()
    optimizer.step()
    {more}
"""


@pytest.mark.parametrize(
    ("more", "environment", "code", "said", "writes"),
    [
        ("pass", {}, 0, "", True),
        ("break", {}, 1, "the program ended after step 1, before its data did", False),
        ("raise ValueError('mine')", {}, 1, "ValueError: mine", False),
        ("pass", {"RANK": "0", "WORLD_SIZE": "2"}, 1, "the environment has RANK=0 and WORLD_SIZE=2, as torchrun sets it", False),
    ],
)  # fmt: skip
def test_a_programs_end(
    more: str, environment: dict[str, str], code: int, said: str, writes: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(more=more))
    run = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env={"OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == code, run.stderr
    assert said in run.stderr
    assert not said or run.stderr.count("Traceback") == 1, run.stderr
    assert (tmp_path / "made.pt").exists() == writes
