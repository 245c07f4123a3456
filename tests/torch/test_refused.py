"""What can't be trained, or is no model file, is refused before the first step, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import BadData, BadModel
from elasticdl.spec import framework

from . import adapter_of, job, made_of

torch = pytest.importorskip("torch", reason="make setup-torch")

import elasticdl.torch as edl  # noqa: E402

from . import loops  # noqa: E402


def dense() -> Any:
    return torch.nn.Linear(4, 3)


def looked_up(sparse: bool) -> Any:
    class LookedUp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, 3, sparse=sparse)

        def forward(self, rows: Any) -> Any:
            return self.table(rows[:, 0].abs().long().clamp(max=8))

    return LookedUp()


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone, as a program for torchrun makes one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(dense(), mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: torch.nn.parallel.DistributedDataParallel(dense()), "DistributedDataParallel"),
        (lambda: torch.nn.Sequential(dense(), torch.nn.SyncBatchNorm(3)), "SyncBatchNorm"),
        (sharded, "FSDPLinear"),
    ],
)
def test_models_of_a_process_group_are_refused(group: None, model: Callable[[], Any], name: str) -> None:
    with pytest.raises(
        BadModel, match=f"m.py: the model has a {name}, which wants a process group; .*: use the plain module"
    ):
        adapter_of(made_of(model))
    made = model()
    with loops.job(), pytest.raises(BadModel, match=f"the model has a {name}, which wants a process group"):
        edl.elastic(made, torch.optim.SGD(made.parameters(), 0.1))


def in_step(labels: Any, outputs: Any) -> Any:
    torch.distributed.all_reduce(outputs)
    return outputs.mean()


def sharded_optimizer(parameters: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)


def sharded_alone() -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(dense())


@pytest.mark.parametrize(
    ("symbols", "name"),
    [
        ({"model": lambda: torch.nn.parallel.DistributedDataParallel(dense())}, "DistributedDataParallel"),
        ({"model": sharded_alone}, "fully_shard"),
        ({"model": lambda: torch.distributed.init_process_group("gloo")}, "init_process_group"),
        ({"model": lambda: torch.nn.Linear(4, torch.distributed.get_world_size())}, "get_world_size"),
        ({"model": lambda: torch.utils.data.DistributedSampler([1, 2])}, "DistributedSampler"),
        ({"optimizer": sharded_optimizer}, "ZeroRedundancyOptimizer"),
        ({"loss": in_step}, "all_reduce"),
    ],
)
def test_what_looks_for_a_process_group_is_told_to_leave_it_out(symbols: dict[str, Any], name: str) -> None:
    with pytest.raises(
        BadModel,
        match=rf"^m.py: {name} wants a process group, and workers of a job have none: .*Use the plain module, .*, and leave {name} out \(",
    ):
        adapter_of(made_of(**{"model": dense, **symbols}))


def test_a_model_file_that_makes_a_process_group_is_told_to_leave_it_out(tmp_path: Path) -> None:
    lines = "import torch.distributed as group\n\n\ngroup.init_process_group('gloo')\n"
    (tmp_path / "m.py").write_text(lines)
    with pytest.raises(BadModel, match=r"m.py: init_process_group wants a process group, .*\(line 4\)\)$"):
        framework.find("torch").load(job(model_zoo=str(tmp_path)))
    (tmp_path / "m.py").write_text("import nothing_that_is_there\n")
    with pytest.raises(BadModel, match=r"m.py: importing it failed: ModuleNotFoundError"):
        framework.find("torch").load(job(model_zoo=str(tmp_path)))


def weighted(records: Any, mode: str, metadata: Any) -> Any:
    return torch.zeros(len(records), 4), torch.zeros(len(records)).long(), torch.ones(len(records))


SGD: Callable[[Any], Any] = lambda parameters: torch.optim.SGD(parameters, 0.1)  # noqa: E731
OF = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"model": lambda: looked_up(True)}, r"the gradient of a parameter \(9, 3\) is sparse; leave sparse=True out"),
        ({"model": lambda: looked_up(True), "optimizer": lambda p: torch.optim.SparseAdam(p)}, "SparseAdam can't be used, since .*dense"),
        ({"optimizer": lambda p: torch.optim.LBFGS(p)}, "LBFGS can't be used, since it evaluates the loss several times a step"),
        ({"model": lambda: 3}, "returned a int; expected a torch.nn.Module"),
        ({"optimizer": lambda p: p}, "returned a list; expected a torch.optim.Optimizer"),
        ({"optimizer": lambda p: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)}, "has parameters that are not the model's"),
        ({"optimizer": lambda p: torch.optim.SGD(p, -1)}, "failed: ValueError: Invalid learning rate"),
        ({"lr_scheduler": lambda one: OF.ReduceLROnPlateau(one)}, "expected a scheduler .* that steps without a metric"),
        ({"lr_scheduler": lambda one: (OF.StepLR(one, 2), "day")}, 'expected a scheduler .*"epoch"'),
        ({"lr_scheduler": lambda one: OF.StepLR(SGD(dense().parameters()), 2)}, "is of another optimizer; give it the one"),
        ({"loss": lambda labels, outputs: 0.5}, "returned a float; expected a tensor with one value, or with one per example"),
        ({"loss": lambda labels, outputs: outputs}, r"returned a tensor \(8, 3\) of torch.float32; expected"),
        ({"loss": lambda labels, outputs: outputs[:3, 0]}, "returned 3 values for 8 examples; expected one for each"),
        ({"loss": lambda labels, outputs: labels.float().mean()}, "the loss does not depend on any parameter"),
        ({"loss": lambda labels, outputs: outputs["x"]}, r"first training step .*\nfeed gave float32 \[8, 4\] and labels int64 \[8\]"),
        ({"feed": weighted}, "feed gives weights of the examples, .* one value per example .reduction='none'."),
    ],
)  # fmt: skip
def test_a_model_file_is_refused_with_what_was_received(symbols: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=said) as refused:
        adapter_of(made_of(**{"model": dense, **symbols}))
    assert str(refused.value).startswith("m.py: ")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda count: torch.zeros(count, 4), "returned a Tensor; feed returns (features, labels)"),
        (lambda count: (torch.zeros(count, 4), torch.zeros(3)), "returned 3 and 8 examples; all tensors have one for each"),
        (lambda count: (torch.zeros(count, 4), "cat"), "returned a str ("),
        (lambda count: (torch.zeros(count, 4), 0), "returned a scalar"),
    ],
)  # fmt: skip
def test_a_feed_is_refused_with_what_it_returned(made: Callable[[int], Any], said: str) -> None:
    with pytest.raises(BadData, match=f"m.py: feed {re.escape(said)}"):
        adapter_of(made_of(dense, feed=lambda records, mode, metadata: made(len(records))))
