"""PyTorch models on parameter servers: what layers find, what is refused, what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elasticdl.catalog.catalog import InitialKind
from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadData, BadModel
from elasticdl.spec import framework
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import PsAdapter
from elasticdl.worker.contract.usermodel import UserModel

from . import LIFE, job, made_of
from .servers import ps_adapter_of

torch = pytest.importorskip("torch", reason="make setup-torch")
nn = torch.nn

from elasticdl.torch import Callback, Embedding  # noqa: E402  # of PyTorch

Floats = npt.NDArray[np.float32]
RECORDS: list[Any] = [[3, 0, 7, 1], [3, 3, 0, 0], [0, 0, 9, 1], [0, 0, 0, 0]]
"""Three ids, of which 0 is padding in some tests, and a label."""


class Net(nn.Module):
    def __init__(self, layer: Any, look_up: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self._look_up = look_up or (lambda layer, ids, weights: layer(ids).sum(1))
        self.dense = nn.Linear(layer.embedding_dim, 1)

    def forward(self, ids: Any, weights: Any) -> Any:
        return self.dense(self._look_up(self.layer, ids, weights)).squeeze(1)


def feed(records: Any, mode: str, metadata: Any) -> Any:
    rows = torch.tensor(records)
    features = {"ids": rows[:, :3], "weights": torch.tensor([[0.5, 2.0, 1.0]]).expand(len(rows), 3)}
    return features if mode == "prediction" else (features, rows[:, 3].float())


def loss(labels: Any, outputs: Any) -> Any:
    return (outputs - labels).square().mean()


def symbols(model: Callable[[], Any], **others: Any) -> UserModel:
    given = {
        "optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1),
        "loss": loss,
        "feed": feed,
        **others,
    }
    callbacks = given.pop("callbacks", None)
    return replace(made_of(model, **given), callbacks=callbacks)


def adapter_of(model: Callable[[], Any], settings: Any = None, **others: Any) -> Any:
    return ps_adapter_of(symbols(model, **others), RECORDS, **(settings or {}))


def adapter_alone(user: UserModel) -> Any:
    made = framework.find("torch").adapter(user, job(), None, LIFE)
    made.prepare(RECORDS)
    return made


def layer(*, embedding_dim: int = 2, num_embeddings: int | None = 10, **given: Any) -> Any:
    return Embedding(embedding_dim, num_embeddings, **{"feature": "ids", **given})


def rows_of(adapter: PsAdapter, batch: Any, matrix: Any) -> list[Floats]:
    """Return the rows of the batch's ids in a matrix, flat."""
    return [matrix[np.frombuffer(one.ids(), np.int64)].reshape(-1) for one in batch.batches]


# ---------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("given", "look_up"),
    [
        ({}, None),
        ({"padding_idx": 0}, None),
        ({"combiner": "sum"}, lambda layer, ids, weights: layer(ids)),
        ({"combiner": "mean", "padding_idx": 0}, lambda layer, ids, weights: layer(ids)),
        ({"combiner": "mean"}, lambda layer, ids, weights: layer(ids, weights)),
        ({"combiner": "sqrtn", "padding_idx": 0}, lambda layer, ids, weights: layer(ids, weights)),
        ({}, lambda layer, ids, weights: layer(ids[:, 0]) * layer(ids[:, 1].int())),
        ({"padding_idx": 0}, lambda layer, ids, weights: layer(ids[:, 2:])[:, 0]),
        ({}, lambda layer, ids, weights: layer(ids.view(torch.uint64)).sum(1)),
    ],
)  # fmt: skip
def test_rows_give_what_a_matrix_gives(given: dict[str, Any], look_up: Callable[..., Any] | None) -> None:
    """The same layer without servers is compared, and so is its gradient."""

    def model() -> Any:
        return Net(layer(**given), look_up)

    adapter = adapter_of(model)
    batch = adapter.convert(RECORDS)
    matrix = np.random.default_rng(2).normal(size=(10, 2)).astype(np.float32)
    found = adapter.compute(batch, rows_of(adapter, batch, matrix), 0, 0)

    plain = model()
    with torch.no_grad():
        plain.layer.weight.copy_(torch.from_numpy(matrix))
        for parameter, value in zip(plain.dense.parameters(), adapter.first_values(), strict=True):
            parameter.copy_(torch.from_numpy(value).view(parameter.shape))
    features, labels = feed(RECORDS, "training", None)
    expected = loss(labels, plain(**features))
    expected.backward()
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    whole = np.zeros_like(matrix)
    ids = np.frombuffer(batch.batches[0].ids(), np.int64)
    whole[ids] = found.rows[0].reshape(-1, 2)
    np.testing.assert_allclose(whole, plain.layer.weight.grad, rtol=1e-4, atol=1e-6)
    for slope, parameter in zip(found.dense, plain.dense.parameters(), strict=True):
        np.testing.assert_allclose(slope, parameter.grad.reshape(-1), rtol=1e-4, atol=1e-6)
    assert (0 in ids) is ("padding_idx" not in given)


def test_a_compiled_model_is_not_compiled_again_for_other_rows() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()
    plain, adapter = (
        adapter_of(lambda: Net(layer())),
        adapter_of(lambda: torch.compile(Net(layer()), backend=backend)),
    )
    assert [one.name for one in adapter.catalog.variables] == ["dense.weight", "dense.bias"]
    many = len(compiled)
    assert many
    matrix = np.ones((10, 2), np.float32)
    for records in (RECORDS, RECORDS[::-1]):
        losses = []
        for one in (plain, adapter):
            batch = one.convert(records)
            losses.append(one.compute(batch, rows_of(one, batch, matrix), 0, 0).loss)
        assert losses[0] == losses[1]
    assert len(compiled) == many


def test_combined_rows_are_those_of_an_embedding_bag() -> None:
    own, bag = (
        layer(combiner="mean", padding_idx=0),
        nn.EmbeddingBag(10, 2, mode="mean", padding_idx=0),
    )
    bag.load_state_dict(own.state_dict())
    ids = torch.tensor([[3, 0, 7], [0, 0, 0]])
    torch.testing.assert_close(own(ids), bag(ids))


def test_ids_are_any_64_bits() -> None:
    ids = [2**64 - 1, 2**63, 5]

    def large(records: Any, mode: str, metadata: Any) -> Any:
        return {"ids": np.array([ids] * len(records), np.uint64), "weights": torch.ones(len(records), 3)}, (
            torch.ones(len(records))
        )

    adapter = adapter_of(lambda: Net(layer(num_embeddings=None)), feed=large)
    (batch,) = adapter.convert(RECORDS).batches
    assert sorted(np.frombuffer(batch.ids(), np.uint64).tolist()) == sorted(ids)


def test_without_servers_a_table_of_any_range_is_refused() -> None:
    with pytest.raises(BadModel, match="train it with --num_ps_pods, or give it num_embeddings"):
        layer(num_embeddings=None)
    with pytest.raises(BadModel, match="combiner is None, sum, mean, sqrtn; received 'max'"):
        layer(combiner="max")
    with pytest.raises(BadModel, match="the Embedding of 'ids' takes integers as ids; received float32"):
        layer()(torch.ones(2))
    with pytest.raises(BadModel, match="has no combiner, which weights need"):
        layer()(torch.tensor([1]), torch.ones(1))


def returned(made: Any) -> Callable[..., Any]:
    return lambda records, mode, metadata: (made(torch.tensor(records)), torch.zeros(len(records)))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda rows: {"id": rows[:, :3]}, r"the embedding layer has its ids in the feature 'ids', and feed gave \{id: int64 \[4, 3\]\}"),
        (lambda rows: rows[:, :3], "the feature 'ids', and feed gave int64 .*let feed return a dictionary that has it"),
        (lambda rows: {"ids": rows[:, :3].float()}, "takes integers as ids, and feed gave float32 .* as 'ids'"),
        (lambda rows: {"ids": rows[:, :3] > 0}, "takes integers as ids, and feed gave bool"),
        (lambda rows: {"ids": rows[:, :3] + 3}, "the embedding layer has the ids 0 to 9, received 1"),
        (lambda rows: {"ids": rows[:, :3] - 1}, "the embedding layer has the ids 0 to 9, received -1"),
        (lambda rows: {"ids": [[2**64, 1, 1]] * len(rows)}, "feed returned a list .*[Oo]verflow"),
    ],
)  # fmt: skip
def test_features_without_ids_are_bad_data(made: Any, said: str) -> None:
    with pytest.raises(BadData, match=f"m.py: .*{said}"):
        adapter_of(lambda: Net(layer()), feed=returned(made))


# ---------------------------------------------------------------------- models


def frozen() -> Any:
    made = Net(layer())
    made.layer.weight.requires_grad_(False)
    return made


def written() -> Any:
    made = Net(layer())
    nn.init.normal_(made.layer.weight)
    return made


def loaded() -> Any:
    made = Net(layer())
    made.load_state_dict({"layer.weight": torch.zeros(10, 2)}, strict=False)
    return made


def counting(kind: Any) -> Any:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__(layer())
            self.register_buffer("seen", torch.zeros(1, dtype=kind))

        def forward(self, ids: Any, weights: Any) -> Any:
            self.seen += 1
            return super().forward(ids, weights)

    return Counts()


class Elsewhere(Callback):
    """Callbacks of steps have no step in common."""

    def on_step_end(self, logs: Any) -> None: ...


SGD = torch.optim.SGD
OF = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"model": frozen}, "the embedding layer is not trained, and rows on parameter servers are"),
        ({"optimizer": lambda p: SGD(p[1:], 0.1)}, "the embedding layer is not trained"),
        ({"model": written}, "the weight of the embedding layer is written to, .*initializer="),
        ({"model": loaded}, "the Embedding of 'ids' has weights from a file, .*leave layer.weight out"),
        ({"model": lambda: Net(layer(initializer=nn.init.orthogonal_))}, "is initialized by .*orthogonal_.*they know constant_, normal_"),
        ({"model": lambda: Net(layer(initializer=nn.init.trunc_normal_, embedding_dim=2))}, None),
        ({"model": lambda: Net(layer(initializer=partial(nn.init.trunc_normal_, std=0.1)))}, "within two deviations of its mean"),
        ({"model": lambda: Net(layer()).double()}, "is of type float64; parameter servers hold float32 only"),
        ({"model": lambda: Net(layer(), lambda one, ids, _: one(ids).sum(1) + one.weight.sum())}, "the loss depends on the weight of the"),
        ({"model": lambda: Net(layer(), lambda layer, ids, _: layer(ids + 1).sum(1))}, "is called with the id [148], which that feature"),
        ({"model": lambda: counting(torch.float64)}, "the buffer 'seen', which is of type float64; parameter servers hold float32"),
        ({"model": lambda: counting(torch.int64)}, None),
        ({"optimizer": lambda p: torch.optim.Adamax(p)}, "know the optimizers SGD, Adagrad, Adam, AdamW, RMSprop, Adadelta of torch.optim; "
            "received torch.optim.adamax.Adamax"),
        ({"optimizer": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.5)}, "SGD: parameter servers don't do dampening=0.5"),
        ({"optimizer": lambda p: SGD(p, 0.1, maximize=True)}, "SGD: parameter servers don't do maximize=True"),
        ({"optimizer": lambda p: SGD([{"params": p[:1], "lr": 1.0}, {"params": p[1:]}], 0.1)}, "have different values of lr"),
        ({"optimizer": lambda p: torch.optim.AdamW([{"params": p[:1], "weight_decay": 1.0}, {"params": p[1:]}])}, "decays 0.01 and 1.0"),
        ({"lr_scheduler": lambda one: OF.OneCycleLR(one, 0.1, 10)}, "the schedule changes momentum|OneCycleLR"),
        ({"callbacks": lambda: [Elsewhere()]}, "Elsewhere is called by step"),
        ({"loss": lambda labels, outputs: labels.mean()}, "the loss does not depend on any parameter"),
    ],
)  # fmt: skip
def test_what_servers_can_not_do_is_refused(others: dict[str, Any], said: str | None) -> None:
    given = {"model": lambda: Net(layer()), **others}
    if said is None:
        adapter_of(**given)
        return
    with pytest.raises(BadModel, match=said) as refused:
        adapter_of(**given)
    assert str(refused.value).startswith("m.py: ")


def test_a_model_file_for_torch_with_servers_is_refused_for_what_it_writes() -> None:
    made = lambda: Net(layer(num_embeddings=None))  # noqa: E731
    with pytest.raises(
        BadModel, match="the embedding layer has ids of any range, so no matrix of a PyTorch model"
    ):
        adapter_of(made, {"output": "m.pt"})
    adapter_of(made, {"output": "m", "output_format": "parquet"})


def test_a_model_that_is_called_elsewhere_and_padding_alone() -> None:
    adapter = adapter_of(lambda: Net(layer(padding_idx=0)))
    features, _ = feed(RECORDS, "training", None)
    with pytest.raises(
        BadModel, match="finds those of a minibatch only while a worker computes that; do not call the model"
    ):
        adapter.model(**features)
    batch = adapter.convert([[0, 0, 0, 1]])
    found = adapter.compute(batch, [np.empty(0, np.float32)], 0, 0)
    assert [len(one) for one in (*batch.batches, *found.rows)] == [0, 0]
    assert any(one.any() for one in found.dense)


def test_without_servers_the_model_file_is_named() -> None:
    with pytest.raises(
        BadModel,
        match=r"^m\.py: the Embedding of 'ids' has ids of any range, for which rows live on parameter servers: train it with --num_ps",
    ):
        adapter_alone(symbols(lambda: Net(layer(num_embeddings=None))))


def test_groups_say_which_weights_decay() -> None:
    def grouped(parameters: Any) -> Any:
        large = [one for one in parameters if one.dim() > 1]
        small = [one for one in parameters if one.dim() == 1]
        return torch.optim.AdamW([{"params": large}, {"params": small, "weight_decay": 0.0}], 0.1)

    catalog = adapter_of(lambda: Net(layer()), optimizer=grouped).catalog
    assert [one.decays for one in catalog.tables] == [True]
    assert {one.name: one.decays for one in catalog.variables} == {"dense.weight": True, "dense.bias": False}
    assert catalog.rule.weight_decay == 0.01


@pytest.mark.parametrize(
    ("initializer", "kind", "first", "second"),
    [
        (nn.init.zeros_, InitialKind.CONSTANT, 0.0, 0.0),
        (nn.init.ones_, InitialKind.CONSTANT, 1.0, 0.0),
        (partial(nn.init.constant_, val=3), InitialKind.CONSTANT, 3.0, 0.0),
        (partial(nn.init.uniform_, a=-0.5), InitialKind.UNIFORM, -0.5, 1.0),
        (nn.init.normal_, InitialKind.NORMAL, 0.0, 1.0),
        (nn.init.trunc_normal_, InitialKind.TRUNCATED_NORMAL, 0.0, 1.0),
        (nn.init.xavier_uniform_, InitialKind.UNIFORM, -(0.5**0.5), 0.5**0.5),
        (partial(nn.init.xavier_normal_, gain=2.0), InitialKind.NORMAL, 0.0, 2 * (1 / 6) ** 0.5),
    ],
)
def test_initial_weights(initializer: Any, kind: InitialKind, first: float, second: float) -> None:
    initial = adapter_of(lambda: Net(layer(initializer=initializer))).catalog.tables[0].initial
    assert initial.kind is kind
    assert (initial.first, initial.second) == pytest.approx((first, second))


# ---------------------------------------------------------------------- rates


def test_the_rate_of_a_step_is_that_of_the_schedule_in_any_order() -> None:
    adapter = adapter_of(lambda: Net(layer()), lr_scheduler=lambda one: OF.StepLR(one, 2, gamma=0.5))
    assert [adapter.rate(step) for step in (4, 0, 2, 1)] == pytest.approx([0.025, 0.1, 0.05, 0.1])
    assert not adapter.follows_epochs


class Halves(Callback):
    def on_evaluated(self, logs: GateLogs) -> bool:
        self.optimizer.learning_rate /= 2  # type: ignore[union-attr]
        return logs.step > 20


def test_a_schedule_of_epochs_and_callbacks_are_called_at_barriers() -> None:
    adapter = adapter_of(
        lambda: Net(layer()),
        lr_scheduler=lambda one: (OF.ExponentialLR(one, 0.1), "epoch"),
        callbacks=lambda: [Halves()],
    )
    assert adapter.follows_epochs
    assert adapter.rate(5) == 0.1
    assert adapter.pass_barrier(GateLogs(10, 0, (("val_loss", 1.0),), False, None)) is None
    assert adapter.rate(5) == pytest.approx(0.05)
    assert adapter.pass_barrier(GateLogs(20, 0, None, True, None)) is None
    assert adapter.rate(5) == pytest.approx(0.005)
    assert adapter.pass_barrier(GateLogs(21, 1, (("val_loss", 1.0),), False, None)) is not None
    adapter.begin_callbacks()
    assert adapter.rate(5) == 0.1


# ---------------------------------------------------------------------- results


class Tables:
    """A table as it would be on servers."""

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix

    def matrix(self, table: int, rows: int) -> Iterator[Floats]:
        yield self._matrix[:4]
        yield self._matrix[4:rows]

    def trained(self, table: int) -> Iterator[Any]:
        yield from ()


MATRIX = np.arange(20, dtype=np.float32).reshape(10, 2)


def test_the_result_is_plain_pytorch(tmp_path: Path) -> None:
    adapter = adapter_of(lambda: Net(layer(combiner="sum", padding_idx=0), lambda layer, ids, _: layer(ids)))
    for number, value in enumerate(adapter.first_values()):
        adapter.take(number, value + 1)
    adapter.export(str(tmp_path / "m.pt"), "state_dict", Tables(MATRIX))
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert list(state) == ["layer.weight", "dense.weight", "dense.bias"]
    bag = nn.EmbeddingBag(10, 2, mode="sum", padding_idx=0)
    bag.load_state_dict({"weight": state["layer.weight"]})
    np.testing.assert_array_equal(bag.weight.detach()[1:], MATRIX[1:])
    assert not bag.weight[0].any()
    np.testing.assert_array_equal(state["dense.bias"], adapter.first_values()[1] + 1)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_a_checkpoint_predicts_what_the_result_predicts(tmp_path: Path) -> None:
    user = symbols(
        lambda: Net(layer()), eval_metrics_fn=lambda: {"error": lambda labels, outputs: labels - outputs}
    )
    adapter = ps_adapter_of(user, RECORDS)
    values = dict(enumerate(value + 1 for value in adapter.first_values()))
    saved = SavedRows.__new__(SavedRows)
    saved.folder, saved.catalog, saved.values = tmp_path, adapter.catalog, values
    saved.rows = lambda table, ids: MATRIX[ids]  # type: ignore[method-assign]
    restored = framework.find("torch").restored(user, adapter.catalog, 0)
    restored.export(str(tmp_path / "m.pt"), "state_dict", values, Tables(MATRIX))
    predicted, evaluated = [], []
    for weights in (saved, tmp_path / "m.pt"):
        trained = framework.find("torch").trained(user, job(), None, weights)
        trained.prepare(RECORDS)
        predicted.append(trained.predict(trained.convert(RECORDS), 0, 0)["prediction"])
        evaluator = trained.evaluator(None)
        evaluator.prepare(RECORDS)
        evaluator.begin_task(0)
        evaluator.evaluate(evaluator.convert(RECORDS))
        evaluated.append(evaluator.metric_values(evaluator.task_state()))
    np.testing.assert_array_equal(*predicted)
    assert evaluated[0] == evaluated[1]
    other = replace(adapter.catalog, tables=[replace(adapter.catalog.tables[0], width=3)])
    saved.catalog = other
    with pytest.raises(
        BadModel, match="a row of the table layer has 3 weights in the checkpoint, and 2 in the model"
    ):
        framework.find("torch").trained(user, job(), None, saved).prepare(RECORDS)
