"""Metrics of torchmetrics and functions, over tasks that several workers evaluate: plain torchmetrics' values over all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.control.protocol.metricstates import combine, pack, unpack
from elasticdl.errors import BadModel

from . import FULL, adapter_of, made_of, records

torch = pytest.importorskip("torch", reason="make setup-torch")


def metrics() -> Any:
    """Return torchmetrics: not imported before it is needed, because that takes seconds and each process that runs tests collects all."""
    return pytest.importorskip("torchmetrics", reason="make setup-torch")


TASKS = [[records(FULL, 1), records(FULL, 2)], [], [records(3, 3)], [records(FULL, 4)]]


def values(user: Any, feed: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Let two workers evaluate the tasks in turn."""
    workers = [adapter_of(user).evaluator(None) for _ in range(2)]
    for one in workers:
        one.prepare(records(FULL))
    states = []
    for task in reversed(range(len(TASKS))):
        worker = workers[task % 2]
        worker.begin_task(task)
        for raw in TASKS[task]:
            worker.evaluate(worker.convert(raw))
        states.append(pack(worker.task_state()))
    catalog = workers[0].catalog()
    combined = combine(catalog, [unpack(catalog.task_arrays(), one) for one in reversed(states)])
    found = [worker.metric_values(combined) for worker in workers]
    assert found[0] == found[1]
    return dict(found[0])


def dense() -> Any:
    return torch.nn.Linear(4, 3)


def everything(user: Any) -> tuple[Any, Any]:
    """Return outputs and labels of all records in one go."""
    features, labels = user.feed(
        [record for task in TASKS for raw in task for record in raw], "evaluation", None
    )
    return adapter_of(user).model.eval()(features).detach(), labels


MADE: dict[str, Callable[[], Any]] = {
    "accuracy": lambda: metrics().classification.MulticlassAccuracy(3, average="macro"),
    "area": lambda: metrics().classification.MulticlassAUROC(3, thresholds=50),
    "confusion": lambda: metrics().classification.MulticlassConfusionMatrix(3),
    "both": lambda: metrics().classification.MulticlassF1Score(3, average=None),
}


def test_metrics_of_torchmetrics_are_those_of_all_records_in_one_go() -> None:
    user = made_of(dense, eval_metrics_fn=lambda: {name: make() for name, make in MADE.items()})
    found = values(user)
    outputs, labels = everything(user)
    assert found["val_loss"] == pytest.approx(float(user.loss(labels, outputs)), rel=1e-6)
    for name, make in MADE.items():
        metric = make()
        metric.update(outputs.softmax(1), labels)
        assert torch.as_tensor(found[f"val_{name}"]).flatten().tolist() == pytest.approx(
            metric.compute().double().flatten().tolist(), rel=1e-6
        ), name


def test_weights_of_examples_count_in_the_loss_and_in_functions() -> None:
    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = torch.tensor([[float(value) for value in record] for record in raw])
        return rows[:, :4], rows[:, 4].long(), rows[:, 0].abs()

    def right(labels: Any, outputs: Any) -> Any:
        return labels == outputs.argmax(1)

    def loss(labels: Any, outputs: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

    user = made_of(dense, loss=loss, feed=feed, eval_metrics_fn=lambda: {"right": right})
    found = values(user)
    features, labels, weights = feed(
        [record for task in TASKS for raw in task for record in raw], "evaluation", None
    )
    outputs = adapter_of(user).model(features).detach()
    assert found["val_loss"] == pytest.approx(float((loss(labels, outputs) * weights).mean()), rel=1e-5)
    assert found["val_right"] == pytest.approx(
        float((right(labels, outputs) * weights).sum() / weights.sum()), rel=1e-5
    )


def test_a_function_without_values_per_example_can_not_be_weighted() -> None:
    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        return torch.zeros(len(raw), 4), torch.zeros(len(raw)).long(), torch.ones(len(raw))

    user = made_of(
        dense,
        loss=lambda labels, outputs: outputs.sum(1),
        feed=feed,
        eval_metrics_fn=lambda: {"mean": lambda labels, outputs: outputs.mean()},
    )
    with pytest.raises(
        BadModel, match="feed gives weights of the examples, and the function returned a scalar"
    ):
        adapter_of(user).evaluator(None).prepare(records(FULL))


def test_outputs_have_their_own_metrics_and_labels() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kind, self.size = torch.nn.Linear(4, 3), torch.nn.Linear(4, 1)

        def forward(self, rows: Any) -> Any:
            return {"kind": self.kind(rows), "size": self.size(rows)}

    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = torch.tensor([[float(value) for value in record] for record in raw])
        return {"rows": rows[:, :4]}, {"kind": rows[:, 4].long(), "size": rows[:, :1]}

    def loss(labels: Any, outputs: Any) -> Any:
        return (
            torch.nn.functional.cross_entropy(outputs["kind"], labels["kind"])
            + (outputs["size"] - labels["size"]).square().mean()
        )

    user = made_of(
        Two,
        loss=loss,
        feed=feed,
        eval_metrics_fn=lambda: {
            "kind": {"accuracy": MADE["accuracy"]()},
            "size": {"error": metrics().MeanSquaredError()},
        },
    )
    assert set(values(user)) == {"val_loss", "val_kind_accuracy", "val_size_error"}


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            lambda: metrics().classification.MulticlassAUROC(3),
            "its state 'preds' is not a sum, .*thresholds=",
        ),
        (lambda: metrics().MaxMetric(), "its state 'max_value' is not a sum"),
        (lambda: metrics().PearsonCorrCoef(), "is not a sum"),
    ],
)
def test_metrics_whose_parts_can_not_be_added_are_refused(metric: Callable[[], Any], said: str) -> None:
    user = made_of(dense, eval_metrics_fn=lambda: {"metric": metric()})
    with pytest.raises(BadModel, match=f"m.py: .*metric.*{said}"):
        adapter_of(user).evaluator(None).prepare(records(FULL))
